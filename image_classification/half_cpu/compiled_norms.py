"""Normalisation of groups of channels and log-softmax, on all formats; float32 arithmetic, rounded once."""

import math

from .arguments import FLOAT32
from .compiled_library import load, numbers
from .onednn_memory import contiguous, in_dtype, in_float32, new_like, ordered_like, settled
from .onednn_normalization import scale_and_shift
from .onednn_primitives import DATA_TYPES, bound, data_type, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved


class GroupNorm(PyLayer):
    """Normalisation of each group of channels of each image, then scale and shift of each channel."""

    @staticmethod
    def forward(ctx, x, scale, shift, groups, epsilon):
        """Return the normalised images in the dtype and memory order of x."""
        ctx.needs = [not (tensor is None or tensor.stop_gradient) for tensor in (x, scale, shift)]
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (scale, shift)]
        x = settled(x)
        batch, channels, *rest = x.shape
        scale, shift = map(in_float32, scale_and_shift(scale, shift, [channels], FLOAT32))
        ctx.numbers = numbers(batch, channels, math.prod(rest), groups, not x.is_contiguous())
        out = new_like(x)
        statistics = [new_tensor(FLOAT32, [batch, channels]) for _ in range(2)]
        load().group_norm(data_type(x), ctx.numbers, epsilon, *pointers(x, scale, shift, out, *statistics))
        keep(ctx, x, scale, *statistics)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x, scale and shift, as far as there are such."""
        x, scale, means, factors = saved(ctx)
        gradient = ordered_like(gradient, x)
        results = [new_like(x), new_tensor(FLOAT32, scale.shape), new_tensor(FLOAT32, scale.shape)]
        read = x, means, factors, scale, gradient
        load().group_norm_backward(data_type(x), ctx.numbers, *pointers(*read, *results))
        given = [results[0] if ctx.needs[0] else None]
        for result, needed, dtype in zip(results[1:], ctx.needs[1:], ctx.dtypes, strict=True):
            if dtype is not None:
                given.append(in_dtype(result, dtype) if needed else None)
        return tuple(given)


def _normalized(x, scale, shift, groups, epsilon):
    given = [tensor for tensor in (scale, shift) if tensor is not None]
    if not servable(x) or x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        return NotImplemented  # Paddle words the error
    if any(tensor.dtype not in DATA_TYPES or tensor.shape != [x.shape[1]] for tensor in given):
        return NotImplemented
    return GroupNorm.apply(x, scale, shift, groups, float(epsilon))


def group_norm(original, args, kwargs):
    """Kernel of ``group_norm(x, scale, bias, epsilon, groups, data_format)``."""
    values = bound(args, kwargs, ("x", "scale", "bias", "epsilon", "groups", "data_format"), ())
    if values[5] != "NCHW":
        return NotImplemented
    x, scale, shift, epsilon, groups, _ = values
    return _normalized(x, scale, shift, groups, epsilon)


def instance_norm(original, args, kwargs):
    """Kernel of ``instance_norm(x, scale, bias, epsilon)``."""
    x, scale, shift, epsilon = bound(args, kwargs, ("x", "scale", "bias", "epsilon"), (None, None, 1e-5))
    return _normalized(x, scale, shift, x.shape[1] if x.ndim > 2 else 0, epsilon)


class LogSoftmax(PyLayer):
    """The logarithm of the softmax over the last axis; keeps its input."""

    @staticmethod
    def forward(ctx, x):
        """Return the logarithms in the dtype of x, dense."""
        x = contiguous(x)
        out = new_tensor(x.dtype, x.shape)
        ctx.sizes = data_type(x), numel(x) // x.shape[-1], x.shape[-1]
        load().log_softmax(*ctx.sizes, x.data_ptr(), out.data_ptr())
        keep(ctx, x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        (x,) = saved(ctx)
        gradient, out = contiguous(gradient), new_tensor(x.dtype, x.shape)
        load().log_softmax_backward(*ctx.sizes, *pointers(x, gradient, out))
        return out


def log_softmax(original, args, kwargs):
    """Kernel of ``log_softmax(x, axis)`` over the last axis."""
    x, axis = bound(args, kwargs, ("x", "axis"), (-1,))
    if not servable(x) or type(axis) is not int or not x.ndim or axis not in (-1, x.ndim - 1):
        return NotImplemented
    return LogSoftmax.apply(x)


KERNELS = {"group_norm": group_norm, "instance_norm": instance_norm, "log_softmax": log_softmax}
