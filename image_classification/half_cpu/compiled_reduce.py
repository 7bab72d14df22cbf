"""Sums and means over any axes, on all formats: float32 sums, rounded once."""

import math

from paddle.autograd import PyLayer

from .arguments import DTYPES
from .compiled_broadcast import memory_axes, repeated_strides, runs_of, sum_over
from .compiled_library import load, numbers
from .onednn_memory import contiguous, new_channels_last, settled
from .onednn_primitives import DATA_TYPES, bound, new_tensor, servable


class Reduction(PyLayer):
    """The sum over some axes, times a factor; nothing is kept."""

    @staticmethod
    def forward(ctx, x, axes, shape, factor, dtype):
        """Return the sum in the shape and format wanted, dense."""
        x = settled(x)
        kept = [axis for axis in memory_axes(x) if axis not in axes and x.shape[axis] > 1]
        if kept != sorted(kept):  # images [B, H, W, C] of which channels and places stay: so would their sum
            x = contiguous(x)
        order = memory_axes(x)
        runs = runs_of(tuple(x.shape[axis] for axis in order), tuple(axis in axes for axis in order))
        ctx.constants = x.dtype, x.shape, not x.is_contiguous(), runs, factor
        return sum_over(x, None, runs, new_tensor(dtype, shape), factor)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, that of its sum times the factor, in the memory order of x."""
        dtype, shape, last, runs, factor = ctx.constants
        gradient = contiguous(gradient)
        out = (new_channels_last if last else new_tensor)(dtype, shape)
        sizes, strides = repeated_strides(runs)
        types = DATA_TYPES[gradient.dtype], DATA_TYPES[dtype]
        load().expand(*types, numbers(*sizes), numbers(*strides), factor, gradient.data_ptr(), out.data_ptr())
        return out


def _apply(x, axes, keepdim, dtype, mean):
    """Return the reduction, or NotImplemented for what Paddle words the error for or for too many alternating axes."""
    if not servable(x) or dtype not in DATA_TYPES:
        return NotImplemented
    axes = [] if axes is None else [axes] if isinstance(axes, int) else axes
    if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, int) for axis in axes):
        return NotImplemented
    named = [axis + x.ndim if axis < 0 else axis for axis in axes]
    axes = set(named) or set(range(x.ndim))
    if len(set(named)) < len(named) or not all(0 <= axis < x.ndim for axis in axes):
        return NotImplemented
    if len(runs_of(tuple(x.shape), tuple(axis in axes for axis in range(x.ndim)))) > 4:
        return NotImplemented
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdim or axis not in axes]
    factor = 1 / math.prod(x.shape[axis] for axis in axes) if mean else 1.0
    return Reduction.apply(x, axes, shape, factor, dtype)


def mean(original, args, kwargs):
    """Kernel of ``mean(x, axis, keepdim)``."""
    values = bound(args, kwargs, ("x", "axis", "keepdim"), ([], False))
    if values is None:
        return NotImplemented
    x, axes, keepdim = values
    return _apply(x, axes, keepdim, x.dtype, True)


def total(original, args, kwargs):
    """Kernel of ``sum(x, axis, dtype, keepdim)``."""
    values = bound(args, kwargs, ("x", "axis", "dtype", "keepdim"), ([], None, False))
    if values is None:
        return NotImplemented
    x, axes, dtype, keepdim = values
    dtype = x.dtype if dtype is None else DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    return _apply(x, axes, keepdim, dtype, False)


KERNELS = {"mean": mean, "sum": total}
