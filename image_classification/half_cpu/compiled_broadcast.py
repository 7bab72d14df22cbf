"""Sums and products of two tensors of which one is broadcast, on all formats; float32 arithmetic, rounded once.

The larger tensor decides the memory order. Neighbouring axes that are treated alike are taken as one, so that most
calls have two or three: a squeeze-and-excitation gate is [B, H * W, C] times [B, 1, C].
"""

import functools
import itertools
import math

from .arguments import FLOAT32
from .compiled_library import load, numbers
from .onednn_memory import (
    channels_last,
    contiguous,
    in_dtype,
    is_channels_last,
    is_settled,
    lies_dense,
    new_channels_last,
    new_like,
    ordered_like,
    passed_on,
    settled,
)
from .onednn_primitives import CACHE_SIZE, bound, data_type, dense_strides, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved


def memory_axes(tensor):
    """Return the axes of a settled tensor from the slowest to the fastest in memory."""
    dense = tensor.is_contiguous() or not is_channels_last(tensor)
    return tuple(range(len(tensor.shape))) if dense else (0, 2, 3, 1)


@functools.lru_cache(maxsize=CACHE_SIZE)
def runs_of(sizes, repeated):
    """Return ((size, whether the small tensor is repeated along it), ..) of two tuples, with neighbours of a kind as
    one, without ones."""
    pairs = [pair for pair in zip(sizes, repeated, strict=True) if pair[0] != 1]
    groups = itertools.groupby(pairs, key=lambda pair: pair[1])
    return tuple((math.prod(size for size, _ in group), kind) for kind, group in groups)


def plan(large, small_shape):
    """Return the runs of a settled tensor in the order of memory, or None for shapes of which the other is no part."""
    return _runs(tuple(large.shape), memory_axes(large), tuple(small_shape))


def dense_runs(shape, small_shape):
    """Return the same of a dense tensor of a shape."""
    return _runs(tuple(shape), tuple(range(len(shape))), tuple(small_shape))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _runs(large, axes, small):
    small = (1,) * (len(large) - len(small)) + small
    if len(small) > len(large) or any(size not in (1, whole) for size, whole in zip(small, large, strict=True)):
        return None
    return runs_of(tuple(large[axis] for axis in axes), tuple(small[axis] != large[axis] for axis in axes))


def in_order_of(small, large):
    """Return the small tensor dense in the memory order of a settled large one, None where it lies in another."""
    if large.is_contiguous() or _is_row(tuple(small.shape)):
        return small if lies_dense(small) else contiguous(small)
    return small if is_channels_last(small) else None


@functools.lru_cache(maxsize=CACHE_SIZE)
def _is_row(shape):
    """Return whether images of a shape lie in memory as [B, C, H, W] and as [B, H, W, C] alike."""
    return sum(size != 1 for size in shape[-3:]) <= 1


@functools.lru_cache(maxsize=CACHE_SIZE)
def repeated_strides(runs):
    """Return (sizes, strides of the small tensor) of up to four runs as four axes; it repeats where a stride is 0."""
    runs = ((1, True),) * (4 - len(runs)) + runs
    strides, step = [], 1
    for size, repeated in reversed(runs):
        strides.append(0 if repeated else step)
        step *= 1 if repeated else size
    return tuple(size for size, _ in runs), tuple(reversed(strides))


def combined(name, large, small, runs):
    """Return `large name small` in the memory order of large; a run along which the small one repeats has stride 0."""
    out = new_like(large)
    load().pair(name, data_type(large), *operands(runs), *pointers(large, small, out))
    return out


@functools.lru_cache(maxsize=CACHE_SIZE)
def operands(runs):
    """Return (sizes, strides of the large and of the small tensor) as the kernel reads them."""
    sizes, strides = repeated_strides(runs)
    return numbers(*sizes), numbers(*dense_strides(sizes), *strides)


@functools.lru_cache(maxsize=CACHE_SIZE)
def spread(runs):
    """Return (sizes, strides of the small tensor) as the kernels read them."""
    return tuple(numbers(*each) for each in repeated_strides(runs))


def sum_over(tensor, other, runs, out, factor=1.0):
    """Write the sum of a settled tensor, or of its product with another, over the runs that repeat; float32 between."""
    *steps, (last, _) = _steps(runs)
    for constants, count in steps:
        target = new_tensor(FLOAT32, [count])
        _reduce(tensor, other, constants, 1.0, target)
        tensor, other = target, None
    _reduce(tensor, other, last, factor, out)
    return out


def _reduce(tensor, other, constants, factor, out):
    load().reduce(data_type(tensor), data_type(out), *constants, *pointers(tensor, other), factor, out.data_ptr())


@functools.lru_cache(maxsize=CACHE_SIZE)
def _steps(runs):
    """Return [((sizes, strides), number of sums)], a sum over one run after the other, the innermost first."""
    sizes, kinds = [size for size, _ in runs], [repeated for _, repeated in runs]
    if not any(kinds):
        sizes, kinds = [1, *sizes], [True, *kinds]
    steps = []
    while any(kinds):
        at = max(index for index, repeated in enumerate(kinds) if repeated)
        outer, middle, inner = math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])
        del sizes[at], kinds[at]
        constants = numbers(outer, middle, inner), numbers(*(middle * inner, inner, 1) * 2)
        steps.append((constants, outer * inner))
    return steps


def together(large, small):
    """Return (the large tensor settled, what brings a gradient to its order, the small one in that order)."""
    large = settled(large)
    ordered = contiguous if large.is_contiguous() else channels_last
    return large, ordered, ordered_like(small, large) if small.shape == large.shape else in_order_of(small, large)


class Broadcast(PyLayer):
    """A tensor combined with a smaller one, for which it is settled, or with one of its shape."""

    @staticmethod
    def forward(ctx, large, small, name, runs):
        """Return the result in the memory order of the large tensor."""
        ctx.needs = (not large.stop_gradient, not small.stop_gradient)
        large, ordered, aligned = together(large, small)
        ctx.constants = (name, runs, small.shape, ordered)
        if name in (b"multiply", b"divide"):
            keep(ctx, large, aligned)
        return combined(name, large, aligned, runs)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of both tensors."""
        name, runs, small_shape, ordered = ctx.constants
        gradient = ordered(gradient)
        large, small = saved(ctx) if name in (b"multiply", b"divide") else (None, None)
        large_gradient = small_gradient = None
        if ctx.needs[0]:
            large_gradient = (
                _scaled(gradient, SIGNS[name][0]) if small is None else combined(name, gradient, small, runs)
            )
        if ctx.needs[1]:
            small_gradient = _small_gradient(gradient, large, small, runs, small_shape, SIGNS[name][1])
        return large_gradient, small_gradient


# operator of a large and a small tensor -> signs of their gradients
SIGNS = {b"add": (1, 1), b"multiply": (1, 1), b"subtract": (1, -1), b"subtract_from": (-1, 1), b"divide": (1, -1)}


def _scaled(tensor, factor):
    if factor == 1:
        return passed_on(tensor)
    out = new_like(tensor)
    load().activation(b"scale", data_type(tensor), numel(tensor), factor, 0.0, tensor.data_ptr(), out.data_ptr())
    return out


def _small_gradient(gradient, large, small, runs, shape, sign):
    """Return the gradient of the smaller tensor: a sum over what repeats it."""
    if gradient.shape == shape:
        return _scaled(gradient, sign) if large is None else combined(b"multiply", gradient, large, runs)
    if sign == 1 or large is None:
        return sum_over(gradient, large, runs, new_small(gradient, shape), sign)
    # of large / small: - sum(gradient * large) / small / small, rounded once
    total = sum_over(gradient, large, runs, new_small(gradient, shape, FLOAT32), sign)
    divisor, dense = in_dtype(small, FLOAT32), ((numel(small), False),)
    total = combined(b"divide", combined(b"divide", total, divisor, dense), divisor, dense)
    return in_dtype(total, gradient.dtype)


def new_small(large, shape, dtype=None):
    """Return a tensor with arbitrary content in the memory order that `in_order_of` gives it."""
    dtype = large.dtype if dtype is None else dtype
    if large.is_contiguous() or _is_row(tuple(shape)):
        return new_tensor(dtype, shape)
    return new_channels_last(dtype, shape)


class OuterSum(PyLayer):
    """The sum of two tensors of which each is repeated along axes of the other."""

    @staticmethod
    def forward(ctx, left, right, runs, shape):
        """Return the sum in the shape of both together, dense; `runs` has those of each tensor."""
        ctx.needs = (not left.stop_gradient, not right.stop_gradient)
        ctx.shapes = shape, left.shape, right.shape
        left, right, out = contiguous(left), contiguous(right), new_tensor(left.dtype, shape)
        (sizes, left_strides), (_, right_strides) = map(repeated_strides, runs)
        constants = numbers(*sizes), numbers(*left_strides, *right_strides)
        load().pair(b"add", data_type(left), *constants, *pointers(left, right, out))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of both tensors: sums over what repeats them."""
        gradient = contiguous(gradient)
        shape, *own = ctx.shapes
        return tuple(
            sum_over(gradient, None, plan(gradient, small), new_tensor(gradient.dtype, small)) if needed else None
            for small, needed in zip(own, ctx.needs, strict=True)
        )


def _outer_sum(left, right):
    """Return the sum of two tensors of one format neither of which has the shape of the sum, or NotImplemented."""
    rank = max(left.ndim, right.ndim)
    shapes = [[1] * (rank - tensor.ndim) + tensor.shape for tensor in (left, right)]
    shape = [max(pair) for pair in zip(*shapes, strict=True)]
    if any(size not in (1, whole) for one in shapes for size, whole in zip(one, shape, strict=True)):
        return NotImplemented
    kinds = zip(*([size != whole for size, whole in zip(one, shape, strict=True)] for one in shapes), strict=True)
    runs = runs_of(tuple(shape), tuple(kinds))
    if len(runs) > 4:
        return NotImplemented
    own = [tuple((size, pair[index]) for size, pair in runs) for index in (0, 1)]
    return OuterSum.apply(left, right, own, shape)


def _kernel(name):
    def kernel(original, args, kwargs):
        left, right = bound(args, kwargs, ("x", "y"), ())
        if not servable(left, right):
            return NotImplemented
        if left.shape == right.shape:
            if name == b"divide":
                return NotImplemented
            return Broadcast.apply(left, right, name, ((numel(left), False),))
        operation, large, small = (name, left, right) if numel(left) >= numel(right) else (REVERSED[name], right, left)
        runs = plan(large, small.shape)
        if runs is None:
            return _outer_sum(left, right) if name == b"add" else NotImplemented
        if operation is None or len(runs) > 4 or not is_settled(large):
            return NotImplemented
        if not (large.is_contiguous() or _is_row(tuple(small.shape)) or is_channels_last(small)):
            return NotImplemented  # the small one lies in another order
        return Broadcast.apply(large, small, operation, runs)

    return kernel


# what the operator is called with its operands exchanged
REVERSED = {b"add": b"add", b"multiply": b"multiply", b"subtract": b"subtract_from", b"divide": None}
KERNELS = {name: _kernel(name.encode()) for name in ("add", "subtract", "multiply", "divide")}
