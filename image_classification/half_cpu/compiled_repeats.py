"""Tensors repeated along axes, and turned round, on all formats: nothing is rounded but the sums of gradients."""

import functools
import math

from .compiled_broadcast import dense_runs, runs_of, spread, sum_over
from .compiled_library import load, numbers
from .compiled_worth import pays
from .linear_map import LinearMap, both_ways
from .onednn_memory import contiguous, new_like, settled
from .onednn_primitives import bound, data_type, new_tensor, numel


def _repeated(runs, shape, x):
    """Return a tensor repeated along runs, (size, whether it is repeated along it), as a tensor of `shape`, dense."""
    x, out = contiguous(x), new_tensor(x.dtype, shape)
    number = data_type(x)
    load().expand(number, number, *spread(runs), 1.0, x.data_ptr(), out.data_ptr())
    return out


def _repeat(x, runs, shape):
    if len(runs) > 4:
        return NotImplemented
    own = x.shape

    def back(gradient):  # the sum over the copies
        return sum_over(contiguous(gradient), None, runs, new_tensor(gradient.dtype, own))

    return LinearMap.apply(x, functools.partial(_repeated, runs, shape), back)


def _expand(x, shape):
    if not isinstance(shape, (list, tuple)) or not all(type(size) is int for size in shape) or len(shape) < x.ndim:
        return NotImplemented
    own = [1] * (len(shape) - x.ndim) + x.shape
    if -1 in shape[: len(shape) - x.ndim]:
        return NotImplemented  # Paddle words the error
    shape = [here if size == -1 else size for size, here in zip(shape, own, strict=True)]
    runs = dense_runs(shape, x.shape)
    if runs is None or not pays(x, math.prod(shape), only_backward=True):
        return NotImplemented  # Paddle words the error
    return _repeat(x, runs, shape)


def expand(original, args, kwargs):
    """Kernel of ``expand(x, shape)``."""
    return _expand(*bound(args, kwargs, ("x", "shape"), ()))


def expand_as(original, args, kwargs):
    """Kernel of ``expand_as(x, y, shape)``."""
    values = bound(args, kwargs, ("x", "y", "target_shape"), ([],))
    return _expand(values[0], values[1].shape)


def tile(original, args, kwargs):
    """Kernel of ``tile(x, repeats)``."""
    x, times = bound(args, kwargs, ("x", "repeat_times"), ())
    if not isinstance(times, (list, tuple)) or not all(type(number) is int and number > 0 for number in times):
        return NotImplemented
    rank = max(x.ndim, len(times))
    own, times = [1] * (rank - x.ndim) + x.shape, [1] * (rank - len(times)) + list(times)
    if not pays(x, numel(x) * math.prod(times), only_backward=True):
        return NotImplemented
    sizes = tuple(size for pair in zip(times, own, strict=True) for size in pair)
    shape = [number * size for number, size in zip(times, own, strict=True)]
    return _repeat(x, runs_of(sizes, (True, False) * rank), shape)


def repeat_interleave(original, args, kwargs):
    """Kernel of ``repeat_interleave(x, repeats, axis)`` for one number of repeats."""
    x, times, axis, _ = bound(args, kwargs, ("x", "repeats", "axis", "output_size"), (-1,))
    if type(times) is not int or type(axis) is not int:
        return NotImplemented
    if times < 1 or not -x.ndim <= axis < x.ndim or not pays(x, numel(x) * times):
        return NotImplemented
    axis %= x.ndim
    sizes = *x.shape[: axis + 1], times, *x.shape[axis + 1 :]
    shape = [*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]]
    return _repeat(x, runs_of(sizes, tuple(place == axis + 1 for place in range(len(sizes)))), shape)


def _flipped(axes, x):
    """Return a tensor with axes from their end to their beginning, in the memory order of x."""
    x = settled(x)
    out = new_like(x)
    start = sum((x.shape[axis] - 1) * x.strides[axis] for axis in axes)
    steps = [-step if axis in axes else step for axis, step in enumerate(x.strides)]
    constants = numbers(start, 0, *x.shape, *steps, *x.strides)
    load().move(x.element_size(), 1, x.ndim, constants, x.data_ptr(), out.data_ptr())
    return out


def flip(original, args, kwargs):
    """Kernel of ``flip(x, axes)``."""
    x, axes = bound(args, kwargs, ("x", "axis"), ())
    if not pays(x, numel(x)):
        return NotImplemented
    axes = [axes] if isinstance(axes, int) else axes
    if not isinstance(axes, (list, tuple)) or not all(type(axis) is int and -x.ndim <= axis < x.ndim for axis in axes):
        return NotImplemented  # Paddle words the error
    named = {axis % x.ndim for axis in axes}
    return both_ways(x, _flipped, (named,), (named,)) if len(named) == len(axes) else NotImplemented


KERNELS = {"expand": expand, "expand_as": expand_as, "flip": flip, "repeat_interleave": repeat_interleave, "tile": tile}
