"""The largest and the smallest over axes, where they are, lengths and running sums, on all formats.

A maximum with NaN is NaN, and equal ones share its gradient; NaN has no place: Paddle's rules.
"""

import paddle

from .arguments import FLOAT32
from .compiled_library import load
from .compiled_places import Taken, split_at
from .compiled_reduce import reduced, reducible
from .compiled_worth import pays
from .linear_map import LinearMap, both_ways, reshaped
from .onednn_memory import as_images, as_rows, contiguous, is_channels_last, new_like
from .onednn_primitives import bound, data_type, new_tensor, numel, pointers
from .paddle_names import reshape
from .recorded import PyLayer
from .saved import keep, own_result, saved

_INT64 = paddle.int64


class Extreme(PyLayer):
    """The largest or the smallest over neighbouring axes."""

    @staticmethod
    def forward(ctx, x, is_minimum, axes, shape):
        """Return it, dense, as a tensor of `shape`."""
        x, sizes = _three_axes(x, axes)
        ctx.sizes = data_type(x), *sizes
        out = new_tensor(x.dtype, shape)
        load().extreme(ctx.sizes[0], is_minimum, *ctx.sizes[1:], *pointers(x, out))
        keep(ctx, x, own_result(out))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, shared by those that are the extreme."""
        x, result = saved(ctx)
        gradient, out = contiguous(gradient), new_like(x)
        load().extreme_backward(*ctx.sizes, *pointers(x, result, gradient, out))
        return out


def _three_axes(x, axes):
    """Return (x, settled, the sizes of the axes before neighbouring ones, of these, and behind them)."""
    x, runs = reducible(x, axes)
    if sum(kind for _, kind in runs) > 1:  # neighbours, such as channels and rows, that lie apart in memory
        x, runs = reducible(contiguous(x), axes)
    sizes, kinds = [size for size, _ in runs], [kind for _, kind in runs]
    return x, split_at(sizes, kinds.index(True)) if True in kinds else (1, 1, numel(x))


def _are_neighbours(axes):
    return max(axes, default=0) - min(axes, default=0) < max(1, len(axes))


def _extreme(is_minimum):
    def kernel(original, args, kwargs):
        x, axes, keepdim = bound(args, kwargs, ("x", "axis", "keepdim"), ([], False))
        if not pays(x, numel(x)):
            return NotImplemented
        found = reduced(x, axes, keepdim)
        if found is None or not _are_neighbours(found[0]):
            return NotImplemented
        axes, shape, _ = found
        return Extreme.apply(x, is_minimum, axes, shape)

    return kernel


def _place(is_minimum):
    def kernel(original, args, kwargs):
        values = bound(args, kwargs, ("x", "axis", "keepdim", "dtype"), (None, False, _INT64))
        if not pays(values[0], numel(values[0])):
            return NotImplemented
        x, axis, keepdim, dtype = values  # the axis None is that of all numbers
        if type(axis) is not int or dtype is not _INT64 or not -x.ndim <= axis < x.ndim:
            return NotImplemented
        x, axis = contiguous(x), axis % x.ndim
        sizes = split_at(x.shape, axis)
        if sizes[1] >= 1 << 24:
            return NotImplemented
        out = new_tensor(_INT64, [*x.shape[:axis], *[1] * bool(keepdim), *x.shape[axis + 1 :]])
        load().place(data_type(x), is_minimum, *sizes, x.data_ptr(), out.data_ptr())
        return out

    return kernel


argmax = _place(0)


def largest_of_images(original, args, kwargs):
    """Kernel of ``max_pool2d_with_index(x, kernel_size, strides, paddings, global_pooling, adaptive, ceil_mode)`` of
    whole images: the first of equal numbers has the gradient."""
    names = ("x", "kernel_size", "strides", "paddings", "global_pooling", "adaptive", "ceil_mode")
    x, size, _, _, whole, adaptive, _ = bound(args, kwargs, names, ([1, 1], [0, 0], False, False, False))
    if x.ndim != 4 or not pays(x, numel(x)) or not (whole or adaptive and list(size) == [1, 1]):
        return NotImplemented
    batch, channels, height, width = x.shape
    if is_channels_last(x):
        lines, axis = reshaped(LinearMap.apply(x, as_rows, as_images), [batch, height * width, channels]), 1
    else:
        lines, axis = reshaped(x, [batch, channels, height * width]), 2
    index = argmax(original, (lines, axis, True), {})
    if index is NotImplemented:
        return NotImplemented
    found = Taken.apply(lines, index, axis, index.shape, True)
    result = [batch, channels, 1, 1]
    return reshaped(found, result), reshape(index, result).astype("int32")


class Length(PyLayer):
    """The root of the sum of squares over neighbouring axes."""

    @staticmethod
    def forward(ctx, x, epsilon, axes, shape):
        """Return it, dense, as a tensor of `shape`."""
        x, sizes = _three_axes(x, axes)
        ctx.constants = data_type(x), *sizes, epsilon
        out, unrounded = new_tensor(x.dtype, shape), new_tensor(FLOAT32, shape)
        load().length(*ctx.constants[:4], *pointers(x, out, unrounded))
        keep(ctx, x, unrounded)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, divided by the length plus epsilon as Paddle does it."""
        x, lengths = saved(ctx)
        gradient, out = contiguous(gradient), new_like(x)
        load().length_backward(*ctx.constants, *pointers(x, lengths, gradient, out))
        return out


def norm(original, args, kwargs):
    """Kernel of ``p_norm(x, porder, axis, epsilon, keepdim, asvector)`` of order 2."""
    names = ("x", "porder", "axis", "epsilon", "keepdim", "asvector")
    x, order, axis, epsilon, keepdim, whole = bound(args, kwargs, names, (2.0, -1, 1e-12, False, False))
    if not pays(x, numel(x)):
        return NotImplemented
    found = reduced(x, [] if whole else axis, keepdim)
    if order != 2 or found is None or not _are_neighbours(found[0]):
        return NotImplemented
    axes, shape, _ = found
    return Length.apply(x, float(epsilon), axes, shape)


def _running_sum(axis, back, x):
    """Return the sum of all elements up to each one along an axis, from the end if `back`, dense."""
    x, out = contiguous(x), new_tensor(x.dtype, x.shape)
    load().running_sum(data_type(x), back, *split_at(x.shape, axis), x.data_ptr(), out.data_ptr())
    return out


def cumsum(original, args, kwargs):
    """Kernel of ``cumsum(x, axis, flatten, exclusive, reverse)`` along one axis, each element with itself."""
    values = bound(args, kwargs, ("x", "axis", "flatten", "exclusive", "reverse"), (-1, False, False, False))
    if not pays(values[0], numel(values[0]), only_backward=True):
        return NotImplemented
    x, axis, flatten, exclusive, reverse = values
    if type(axis) is not int or flatten or exclusive or not -x.ndim <= axis < x.ndim:
        return NotImplemented
    axis %= x.ndim
    return both_ways(x, _running_sum, (axis, bool(reverse)), (axis, not reverse))


KERNELS = {
    "amax": _extreme(0),
    "amin": _extreme(1),
    "argmax": argmax,
    "argmin": _place(1),
    "cumsum": cumsum,
    "max": _extreme(0),
    "max_pool2d_with_index": largest_of_images,
    "min": _extreme(1),
    "p_norm": norm,
}
