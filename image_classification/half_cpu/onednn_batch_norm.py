"""Batch normalisation with float32 statistics; of image batches [B, C, H, W] with what comes before or after it, too.

Where a convolution comes before and nothing is trained, normalisation, sum and activation are done on the convolution's
float32 sums. Otherwise the sum with a residual and the activation are done in the pass that normalises, and in the one
that computes its gradient.
"""

import numpy as np
import paddle

from . import compiled, paddle_names
from . import onednn_library as onednn
from .arguments import CPU, FLOAT32
from .composites import ACTIVATIONS
from .linear_map import reshaped
from .onednn_convolution import Convolution
from .onednn_convolution_passes import plan, run, runs_in_float32
from .onednn_memory import (
    channels_last,
    contiguous,
    in_dtype,
    in_float32,
    new_channels_last,
    new_like,
    ordered_like,
    settled,
)
from .onednn_normalization import scale_and_shift
from .onednn_primitives import Layout, bound, cache, layout, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import own_result, save, saved
from .scope import made_once

# activation -> the post operation of a convolution
_POST_OPS = {
    "relu": ("eltwise", onednn.RELU, 0.0, 0.0),
    "relu6": ("eltwise", onednn.CLIP, 0.0, 6.0),
    "hardswish": ("eltwise", onednn.HARDSWISH, 1 / 6, 0.5),
    "silu": ("eltwise", onednn.SWISH, 1.0, 0.0),
    "gelu": ("eltwise", onednn.GELU_ERF, 0.0, 0.0),
}
_BY_THEIR_RESULT = (None, "relu", "relu6")  # know their gradient by it
_NAMES = ("x", "mean", "variance", "scale", "bias", "is_test", "momentum", "epsilon", "data_format",
          "use_global_stats", "trainable_statistics")  # fmt: skip


def _always(*key):
    """oneDNN's threads wait for each other by spinning, and its kernel of channels that no vector divides takes ten
    times as long in bfloat16."""
    return True


def _forward(builder, images, epsilon, flags):
    md = builder.md(images)
    return "batch_normalization_forward", onednn.FORWARD_TRAINING, md, md, epsilon, flags, None


@compiled.counterpart(compiled.batch_norm, _always)
def _describe(library, builder, images, epsilon, flags, activation=None, has_residual=False):
    if activation or has_residual:
        raise onednn.OneDNNError("the compiled kernel has these")
    numbers = (onednn.SRC, onednn.SCALE, onednn.SHIFT, onednn.DST, onednn.MEAN, onednn.VARIANCE)
    return library.description(*_forward(builder, images, epsilon, flags)), numbers


@compiled.counterpart(compiled.batch_norm_backward, _always)
def _describe_backward(library, builder, images, epsilon, flags, activation=None, has_residual=False):
    md = builder.md(images)
    hint = builder.hint(*_forward(builder, images, epsilon, flags))
    description = library.description(
        "batch_normalization_backward", onednn.BACKWARD, md, md, md, epsilon, flags, hint, None
    )
    numbers = [onednn.SRC, onednn.MEAN, onednn.VARIANCE, onednn.SCALE, onednn.DIFF_DST]
    return description, numbers + [onednn.DIFF_SRC, onednn.DIFF_SCALE, onednn.DIFF_SHIFT]


class BatchNorm(PyLayer):
    """Normalisation of each channel by the batch's statistics, or by given ones; then maybe a sum and an activation."""

    @staticmethod
    def forward(ctx, x, scale, shift, mean, variance, epsilon, momentum, activation, residual):
        """Return activation(normalised x + residual) in the dtype of x; with a momentum `mean` and `variance` move
        towards the statistics of the batch, without one they are the statistics."""
        inputs = (x, scale, shift) if residual is None else (x, scale, shift, residual)
        ctx.needs = [not tensor.stop_gradient for tensor in inputs]
        ctx.parameter_dtype = scale.dtype
        x = settled(x)
        scale, shift = in_float32(scale), in_float32(shift)
        out = new_like(x)
        flags = onednn.USE_SCALE | onednn.USE_SHIFT
        if momentum is None:
            flags, statistics = flags | onednn.USE_GLOBAL_STATS, [mean, variance]
        else:
            statistics = [new_tensor(FLOAT32, [2, *scale.shape])]
        ctx.key = (epsilon, flags, activation, residual is not None)
        last = () if residual is None else pointers(residual := ordered_like(residual, x))
        cache.get(_describe, layout(x), *ctx.key)(*pointers(x, scale, shift, out), *_places(statistics), *last)
        if momentum is not None:
            _move((mean, variance), statistics[0], momentum)
        ctx.masks = residual is not None and activation is not None
        save(ctx, x, scale, shift, *statistics, *([own_result(out)] if ctx.masks else ()))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x, scale, shift and residual; statistics get none."""
        x, scale, shift, *statistics = saved(ctx)
        out = statistics.pop() if ctx.masks else None
        gradient = ordered_like(gradient, x)
        results = [new_like(x), new_tensor(FLOAT32, scale.shape), new_tensor(FLOAT32, scale.shape)]
        operands = [scale, gradient, *results]
        if compiled.formats():
            operands.append(shift)  # which oneDNN does not read
        if ctx.masks:
            gradient = new_like(x)
            operands += [ordered_like(out, x), gradient]
        cache.get(_describe_backward, layout(x), *ctx.key)(x.data_ptr(), *_places(statistics), *pointers(*operands))
        results[1:] = [in_dtype(result, ctx.parameter_dtype) for result in results[1:]]
        results.append(gradient)
        gradients = [result if needed else None for result, needed in zip(results, ctx.needs, strict=False)]
        return (*gradients[:3], None, None, *gradients[3:])


def _places(statistics):
    """Return where a mean and a variance begin in memory: those of two tensors, or of one that holds both, [2, C]."""
    first, *second = statistics
    mean = first.data_ptr()
    return mean, second[0].data_ptr() if second else mean + 4 * first.shape[1]


def _move(running, batch, momentum):
    """Move the running mean and variance towards a batch's, [2, C], as Paddle does, bit for bit."""
    if compiled.formats():
        compiled.move_statistics(momentum, batch.shape[1], *_places((batch,)), *_places(running))
        paddle_names.bump_version(running[0])
        paddle_names.bump_version(running[1])
        return
    for old, new in zip(running, batch, strict=True):
        paddle_names.scale_(old, momentum, 0.0, True)
        paddle_names.add_(old, paddle_names.scale(new, 1.0 - momentum, 0.0, True))


def batch_norm(original, args, kwargs):
    """Kernel of ``batch_norm(...)`` with float32 running statistics, which it updates as Paddle does."""
    values = bound(args, kwargs, _NAMES, ())
    x, mean, variance, scale, shift, is_test, momentum, epsilon, data_format, use_global_stats, moves = values
    given = use_global_stats or is_test and not moves  # a norm may use its batch's in evaluation too
    is_image = x.ndim == 4 and data_format == "NCHW"
    if not is_image and (x.ndim < 2 or x.dtype is FLOAT32 or not compiled.formats()):
        return NotImplemented  # in float32 Paddle's own takes no longer
    channels = x.shape[-1 if data_format == "NHWC" else 1]
    dtype = next((tensor.dtype for tensor in (scale, shift) if tensor is not None), FLOAT32)
    scale, shift = scale_and_shift(scale, shift, [channels], dtype)  # Paddle's own has no gradient for one alone
    arguments = scale, shift, mean, variance, epsilon, momentum
    if data_format != "NHWC" or not servable(x):
        return _normalised(x, *arguments, data_format, given)
    found = _normalised(reshaped(x, [numel(x) // channels, channels]), *arguments, "NCHW", given)
    return found if found is NotImplemented else (reshaped(found[0], x.shape), *found[1:])


def _normalised(x, scale, shift, mean, variance, epsilon, momentum, data_format, given, activation=None, residual=None):
    """Return what the operator returns, its first result after the sum and the activation; nobody reads the last."""
    if not servable(x) or not _are_served(x.shape[1], scale, shift, mean, variance, data_format):
        return NotImplemented
    momentum = None if given else float(momentum)
    out = BatchNorm.apply(x, scale, shift, mean, variance, float(epsilon), momentum, activation, residual)
    return out, mean, variance, None, None, None


def _are_served(channels, scale, shift, mean, variance, data_format):
    if data_format != "NCHW" or scale is None or shift is None or mean.dtype is not FLOAT32:
        return False
    if any(one.shape != [channels] for one in (scale, shift, mean, variance)):
        return False  # Paddle words the error
    if not mean.is_contiguous() or not variance.is_contiguous():
        return False  # they are read and moved where they lie
    return servable(scale, shift) and servable(mean, variance)


def norm_activation(original, args, kwargs):
    """Kernel of ``norm_activation(x, norm, activation, residual)`` for a plain BatchNorm."""
    x, norm, activation, residual = bound(args, kwargs, ("x", "norm", "activation", "residual"), (None, None))
    if not _fits(norm, activation, x.dtype, x.shape, residual):
        return NotImplemented
    arguments = (*paddle_names.norm_arguments(norm), ACTIVATIONS.get(activation), residual)
    result = _normalised(x, norm.weight, norm.bias, *arguments)
    return result if result is NotImplemented else result[0]


def _fits(norm, activation, dtype, shape, residual):
    """Return whether the kernel has what follows images of a shape: a plain BatchNorm, a sum and an activation."""
    if not compiled.formats() or not paddle_names.is_plain(norm, paddle.nn.BatchNorm2D) or not _knows(activation):
        return False
    if len(shape) != 4:
        return False  # Paddle words the error
    if residual is None:
        return True
    is_alike = residual.dtype is dtype and tuple(residual.shape) == tuple(shape)
    return is_alike and ACTIVATIONS.get(activation) in _BY_THEIR_RESULT


def _knows(activation):
    return activation is None or activation in ACTIVATIONS


def conv_norm(original, args, kwargs, rounds=False):
    """Kernel of ``_conv_norm(x, weight, conv, norm, activation, residual)`` for plain layers: without gradients in one
    pass, where the norm's statistics are given; with them one operator after the other, and then it `rounds` filters,
    float32 ones with half images."""
    values = bound(args, kwargs, ("x", "weight", "conv", "norm", "activation", "residual"), (None, None))
    x, weight, conv, norm, activation, residual = values
    trains, is_plain = paddle.is_grad_enabled(), paddle_names.is_plain
    if not is_plain(conv, paddle.nn.Conv2D) or not is_plain(norm, paddle.nn.BatchNorm2D) or not _knows(activation):
        return NotImplemented
    mean, variance, epsilon, momentum, data_format, given = paddle_names.norm_arguments(norm)
    arguments, scale, shift, bias = paddle_names.convolution_arguments(conv), norm.weight, norm.bias, conv.bias
    if not (given or trains) or arguments is None:
        return NotImplemented
    if not _are_served(weight.shape[0], scale, shift, mean, variance, data_format):
        return NotImplemented
    found = plan(x, weight, *arguments)
    if found is None or scale.shape != weight.shape[:1] or weight.dtype is not x.dtype and not (rounds and trains):
        return NotImplemented
    if bias is not None and (trains or bias.dtype is not x.dtype):
        return NotImplemented  # it makes the sum float32
    if trains:
        if not _fits(norm, activation, x.dtype, found.shape, residual):
            return NotImplemented
        x = Convolution.apply(x, weight, found)
        following = ACTIVATIONS.get(activation), residual
        return _normalised(x, scale, shift, mean, variance, epsilon, momentum, data_format, given, *following)[0]
    if residual is not None and (residual.dtype is not x.dtype or tuple(residual.shape) != found.shape):
        return NotImplemented
    dtype, x, weight = x.dtype, channels_last(x), contiguous(weight)
    if runs_in_float32(found.key[1]):
        x, weight = in_dtype(x, FLOAT32), in_dtype(weight, FLOAT32)
        residual = None if residual is None else in_dtype(residual, FLOAT32)
        found = plan(x, weight, *arguments)
    others = pointers(shift, mean, variance, bias)
    affine = made_once(scale.data_ptr(), ("affine", epsilon, *others), lambda: _affine(norm, bias))
    channels = weight.shape[0]
    # Channels last, as the result: oneDNN takes the numbers for those of a single pixel, and computes by scalar loops.
    each = Layout(onednn.FLOAT32, (1, channels, 1, 1), (channels, 1, channels, channels))
    post_ops: list[tuple] = [("binary", onednn.BINARY_MUL, each), ("binary", onednn.BINARY_ADD, each)]
    operands = [affine.data_ptr(), affine.data_ptr() + 4 * channels]
    if residual is not None:
        residual = channels_last(residual)
        post_ops.append(("binary", onednn.BINARY_ADD, layout(residual)))
        operands.append(residual.data_ptr())
    if activation is not None:
        post_ops.append(_POST_OPS[ACTIVATIONS[activation]])
    out = new_channels_last(x.dtype, found.shape)
    run("forward", (*found.key, tuple(post_ops)), x, weight, out, operands)
    return in_dtype(out, dtype)


def _affine(norm, bias):
    """Return the factors and the addends of the channels, float32 [2, C], of a convolution's bias and a norm."""
    mean, variance, epsilon, *_ = paddle_names.norm_arguments(norm)
    scale, shift, mean, variance = (in_float32(each).numpy() for each in (norm.weight, norm.bias, mean, variance))
    factor = scale / np.sqrt(variance + np.float32(epsilon))
    center = mean if bias is None else mean - in_float32(bias).numpy()
    return paddle.to_tensor(np.stack([factor, shift - center * factor]), place=CPU)
