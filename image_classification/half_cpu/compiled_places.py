"""Rows and elements that an index names, on all formats: copies that round nothing; gradients are float32 sums."""

import math

import paddle

from .arguments import FLOAT32
from .compiled_library import load
from .compiled_worth import pays
from .onednn_memory import contiguous
from .onednn_primitives import bound, data_type, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved
from .scope import active

_INT64, _INT32 = paddle.int64, paddle.int32


def split_at(shape, axis):
    """Return the numbers of elements before an axis, along it and behind it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


class Taken(PyLayer):
    """The parts of a tensor along an axis that an index names; or an element for each one of the index, which differs
    then from the tensor along the axis alone."""

    @staticmethod
    def forward(ctx, x, index, axis, shape, along):
        """Return the parts in the order of the index, or the elements `along` it, dense, as a tensor of `shape`."""
        x = contiguous(x)
        outer, places, inner = split_at(x.shape, axis)
        ctx.along, ctx.like = along, (x.dtype, x.shape)
        ctx.sizes = outer, places, index.shape[axis] if along else numel(index), inner
        out = new_tensor(x.dtype, shape)
        take = load().take_along if along else load().take_rows
        take(x.element_size(), *ctx.sizes, *pointers(index, x, out))
        keep(ctx, index)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x: the sum of what comes back to each place."""
        (index,) = saved(ctx)
        gradient, out = contiguous(gradient), new_tensor(*ctx.like)
        add = load().add_along if ctx.along else load().add_rows
        add(data_type(gradient), *ctx.sizes, *pointers(index, gradient, out))
        return out, None


def _whole(index):
    """Return an index as the kernels read it: dense 64-bit numbers, without the history that Paddle gives places which
    it found in a tensor with gradients. It has none of its own, and a `PyLayer` cannot say so without a crash."""
    index = index.detach()
    return contiguous(index if index.dtype is _INT64 else index.astype(_INT64))


def rows(x, index, axis, shape):
    """Return the parts of x along an axis that an index names, in the shape wanted, or NotImplemented. The library
    refuses an index that is no place: Paddle words the error, or counts from the end."""
    if index.dtype not in (_INT64, _INT32) or not servable(x) or not math.prod(shape):
        return NotImplemented
    return Taken.apply(x, _whole(index), axis, shape, False)


def gather(original, args, kwargs):
    """Kernel of ``gather(x, index, axis)`` and ``index_select(x, index, axis)`` for a list of places. In float32
    Paddle's are as fast, and have the same bits, but not where a pass is recorded."""
    x, index, axis = bound(args, kwargs, ("x", "index", "axis"), (0,))
    if type(axis) is not int:
        return NotImplemented
    if x.dtype is FLOAT32 and active.recorder is None or index.ndim != 1 or not -x.ndim <= axis < x.ndim:
        return NotImplemented
    axis %= x.ndim
    return rows(x, index, axis, [*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]])


def embedding(original, args, kwargs):
    """Kernel of ``embedding(index, weight, padding_idx, sparse)`` without padding, of a half weight; its gradient is
    dense."""
    values = bound(args, kwargs, ("x", "weight", "padding_idx", "sparse"), (-1, False))
    if values[2] != -1 or values[1].dtype is FLOAT32 or values[1].ndim != 2:
        return NotImplemented
    index, weight, *_ = values
    return rows(weight, index, 0, [*index.shape, weight.shape[1]])


def take_along_axis(original, args, kwargs):
    """Kernel of ``take_along_axis(x, index, axis)`` for an index that differs from x along the axis alone."""
    x, index, axis = bound(args, kwargs, ("arr", "indices", "axis"), ())
    if type(axis) is not int:
        return NotImplemented
    if index.dtype not in (_INT64, _INT32) or index.ndim != x.ndim or not -x.ndim <= axis < x.ndim:
        return NotImplemented
    axis %= x.ndim
    if [*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :]] != index.shape or not pays(x, numel(index)):
        return NotImplemented
    return Taken.apply(x, _whole(index), axis, index.shape, True)


def items(x, index):
    """Return ``x[index]`` for one tensor of places behind whole axes, or NotImplemented."""
    *whole, places = index if isinstance(index, tuple) else (index,)
    if not isinstance(places, paddle.Tensor) or places.dtype not in (_INT64, _INT32) or len(whole) >= x.ndim:
        return NotImplemented
    if not all(isinstance(entry, slice) and entry == slice(None) for entry in whole):
        return NotImplemented
    axis = len(whole)
    return rows(x, places, axis, [*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]])


def _in_order(x, axis, descending, wanted):
    """Return (the first `wanted` numbers along an axis in their order, their places); equal ones keep theirs."""
    if not pays(x, numel(x)) or not -x.ndim <= axis < x.ndim:
        return NotImplemented
    axis %= x.ndim
    if not 0 < wanted <= x.shape[axis] < 1 << 32:
        return NotImplemented  # Paddle words the error
    plain = contiguous(x)  # not x, which has the history
    index = new_tensor(_INT64, [*x.shape[:axis], wanted, *x.shape[axis + 1 :]])
    constants = data_type(x), descending, *split_at(x.shape, axis), wanted
    load().order(*constants, plain.data_ptr(), index.data_ptr())
    found = Taken.apply(x, index, axis, index.shape, True)
    index.stop_gradient = found.stop_gradient  # as Paddle says it
    return found, index


def argsort(original, args, kwargs):
    """Kernel of ``argsort(x, axis, descending, stable)``, always stable."""
    x, axis, descending, _ = bound(args, kwargs, ("x", "axis", "descending", "stable"), (-1, False, False))
    if type(axis) is not int or not x.ndim:
        return NotImplemented
    return _in_order(x, axis, bool(descending), x.shape[axis] if -x.ndim <= axis < x.ndim else 0)


def topk(original, args, kwargs):
    """Kernel of ``topk(x, k, axis, largest, sorted)``, always sorted."""
    x, wanted, axis, largest, _ = bound(args, kwargs, ("x", "k", "axis", "largest", "sorted"), (1, -1, True, True))
    if type(wanted) is not int or type(axis) is not int:
        return NotImplemented
    return _in_order(x, axis, bool(largest), wanted)


KERNELS = {
    "argsort": argsort,
    "embedding": embedding,
    "gather": gather,
    "index_select": gather,
    "take_along_axis": take_along_axis,
    "topk": topk,
}
