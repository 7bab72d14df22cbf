"""A residual sum and the layer norm of it in one pass each way.

The sum is written as the norm reads it. Its gradient, the norm's and that of what else reads the sum, is written for
both operands at once, where the engine would add two and an operand would get a copy.
"""

import paddle

from . import paddle_names
from .arguments import FLOAT32
from .compiled_library import load
from .compiled_residual import sample_factors
from .onednn_memory import contiguous, in_dtype, in_float32
from .onednn_primitives import DATA_TYPES, bound, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, own_result, saved


class ResidualNorm(PyLayer):
    """x + branch * weights * factors, float32, and its layer norm in the half dtype of the branch; weights of the last
    axis, or None, and a factor for each sample, or None."""

    @staticmethod
    def forward(ctx, x, branch, scale, shift, weights, factors, epsilon):
        """Return (the sum, its norm), both in the shape of x."""
        given = x, branch, scale, shift, weights
        ctx.needs = [not tensor.stop_gradient for tensor in given if tensor is not None]
        ctx.dtypes = [tensor.dtype for tensor in (scale, shift, weights) if tensor is not None]
        ctx.half = branch.dtype
        x, branch, scale, shift = contiguous(x), contiguous(branch), in_float32(scale), in_float32(shift)
        weights = None if weights is None else in_float32(weights)
        samples, columns = x.shape[0], numel(scale)
        rows = numel(x) // columns
        total, out = new_tensor(FLOAT32, x.shape), new_tensor(ctx.half, x.shape)
        mean, variance = new_tensor(FLOAT32, [rows]), new_tensor(FLOAT32, [rows])
        ctx.numbers = DATA_TYPES[ctx.half], samples, rows // samples, columns, epsilon
        tensors = x, branch, weights, factors, scale, shift, total, out, mean, variance
        load().residual_norm(*ctx.numbers, *pointers(*tensors))
        branch = branch if ctx.needs[4:] == [True] else None
        keep(ctx, own_result(total), branch, weights, factors, mean, variance, scale)
        return total, out

    @staticmethod
    def backward(ctx, total_gradient, gradient):
        """Return the gradients of x, branch, scale and shift, and of weights where there are any."""
        total, branch, *others, scale = saved(ctx)
        given = contiguous(total_gradient), contiguous(gradient)
        results = [new_tensor(FLOAT32, total.shape), new_tensor(ctx.half, total.shape)]
        results += [new_tensor(FLOAT32, scale.shape) for _ in range(2 if branch is None else 3)]
        results += [None] if branch is None else []
        tensors = total, branch, *others, scale, *given, *results
        load().residual_norm_backward(*ctx.numbers, *pointers(*tensors))
        dtypes = FLOAT32, ctx.half, *ctx.dtypes
        pairs = zip(results, dtypes, ctx.needs, strict=False)  # the last one may be of no tensor
        return tuple(in_dtype(result, dtype) if needed else None for result, dtype, needed in pairs)


def residual_norm(original, args, kwargs):
    """Kernel of ``residual_norm(x, branch, norm, scale=None, drop_path=None)`` for a float32 x, a half branch, a scale
    of the last axis and a plain LayerNorm over it, whose result has the `dtype` of the branch."""
    names = ("x", "branch", "norm", "scale", "drop_path", "dtype")
    x, branch, norm, scale, drop_path, dtype = bound(args, kwargs, names, (None, None, None))
    if not servable(x) or not servable(branch) or x.dtype is not FLOAT32 or branch.dtype is not dtype:
        return NotImplemented
    if x.shape != branch.shape or x.ndim < 2 or not _is_last_axis(scale, x):
        return NotImplemented
    weights = paddle_names.is_plain(norm, paddle.nn.LayerNorm) and (norm.weight, norm.bias)
    if not weights or any(weight is None or weight.shape != x.shape[-1:] for weight in weights):
        return NotImplemented
    if weights[0].dtype not in DATA_TYPES or weights[1].dtype is not weights[0].dtype:
        return NotImplemented
    factors = sample_factors(drop_path, branch)
    return ResidualNorm.apply(x, branch, *weights, scale, factors, paddle_names.norm_epsilon(norm))


def _is_last_axis(scale, x):
    return scale is None or scale.shape == x.shape[-1:] and servable(scale)


KERNELS = {"residual_norm": residual_norm}
