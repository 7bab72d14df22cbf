"""Sums and means over any axes, on all formats: float32 sums, rounded once."""

import functools
import math

from .arguments import DTYPES, FLOAT32
from .compiled_broadcast import memory_axes, runs_of, spread, sum_over
from .compiled_library import load
from .onednn_memory import contiguous, new_channels_last, settled
from .onednn_primitives import CACHE_SIZE, bound, data_type, is_known, new_tensor, servable
from .recorded import PyLayer


def reducible(x, axes):
    """Return (x, its runs in the order of memory), settled so that what is left of x lies dense."""
    x = settled(x)
    runs = _runs(tuple(x.shape), memory_axes(x), axes)
    if runs is None:
        x = contiguous(x)
        runs = _runs(tuple(x.shape), memory_axes(x), axes)
    return x, runs


class Reduction(PyLayer):
    """The sum over some axes, times a factor; nothing is kept."""

    @staticmethod
    def forward(ctx, x, axes, shape, factor, dtype):
        """Return the sum in the shape and format wanted, dense."""
        x, runs = reducible(x, axes)
        ctx.constants = x.dtype, x.shape, not x.is_contiguous(), runs, factor
        return sum_over(x, None, runs, new_tensor(dtype, shape), factor)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, that of its sum times the factor, in the memory order of x."""
        dtype, shape, last, runs, factor = ctx.constants
        gradient = contiguous(gradient)
        out = (new_channels_last if last else new_tensor)(dtype, shape)
        types = data_type(gradient), data_type(out)
        load().expand(*types, *spread(runs), factor, gradient.data_ptr(), out.data_ptr())
        return out


@functools.lru_cache(maxsize=CACHE_SIZE)
def _runs(shape, order, axes):
    """Return the runs of a tensor whose axes lie in memory in this order, or None where those that stay do not lie in
    the order of the result: channels and places of images [B, H, W, C]."""
    kept = [axis for axis in order if axis not in axes and shape[axis] > 1]
    if kept != sorted(kept):
        return None
    return runs_of(tuple(shape[axis] for axis in order), tuple(axis in axes for axis in order))


def _apply(x, axes, keepdim, dtype, mean):
    """Return the reduction, or NotImplemented for what Paddle words the error for or for too many alternating axes."""
    if not servable(x) or not is_known(dtype):
        return NotImplemented
    found = reduced(x, axes, keepdim)
    if found is None:
        return NotImplemented
    axes, shape, count = found
    return Reduction.apply(x, axes, shape, 1 / count if mean else 1.0, dtype)


def reduced(x, axes, keepdim):
    """Return (the axes named, all for none, the shape of the result, elements of each sum), or None for what is not
    served and where Paddle words the error."""
    axes = [] if axes is None else [axes] if isinstance(axes, int) else axes
    if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, int) for axis in axes):
        return None
    return _described(tuple(x.shape), tuple(axes), bool(keepdim))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _described(sizes, axes, keepdim):
    """Return (axes from 0 on, shape of the result, elements of each sum), or None for what is not served."""
    rank = len(sizes)
    named = [axis + rank if axis < 0 else axis for axis in axes]
    reduced = frozenset(named or range(rank))
    if len(set(named)) < len(named) or not all(0 <= axis < rank for axis in reduced):
        return None
    if len(runs_of(sizes, tuple(axis in reduced for axis in range(rank)))) > 4:
        return None
    shape = [1 if axis in reduced else size for axis, size in enumerate(sizes) if keepdim or axis not in reduced]
    return reduced, shape, math.prod(sizes[axis] for axis in reduced)


def mean(original, args, kwargs, dtype=None):
    """Kernel of ``mean(x, axis, keepdim)``, in the format of x or a wider one."""
    x, axes, keepdim = bound(args, kwargs, ("x", "axis", "keepdim"), ([], False))
    return _apply(x, axes, keepdim, dtype or x.dtype, True)


def mean_of_all(original, args, kwargs):
    """Kernel of ``mean_all(x)``, with which Paddle's losses end."""
    values = bound(args, kwargs, ("x",), ())
    return _apply(values[0], None, False, values[0].dtype, True)


def total(original, args, kwargs):
    """Kernel of ``sum(x, axis, dtype, keepdim)``."""
    x, axes, dtype, keepdim = bound(args, kwargs, ("x", "axis", "dtype", "keepdim"), ([], None, False))
    dtype = x.dtype if dtype is None else DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    return _apply(x, axes, keepdim, dtype, False)


KERNELS = {"mean": mean, "mean_all": mean_of_all, "sum": total}
WIDENING = {"mean": functools.partial(mean, dtype=FLOAT32)}  # which need no float32 copy of what they read
