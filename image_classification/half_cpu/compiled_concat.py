"""Concatenation and splitting in the memory order of images, their gradients, and reshaping of what lies in another
order, on all formats; nothing is rounded."""

import functools
import math

from . import paddle_names
from .arguments import CPU
from .compiled_library import addresses, load, numbers
from .compiled_worth import LARGE, asks_gradient
from .linear_map import LinearMap
from .onednn_memory import are_rows, channels_last, contiguous, copy_layout, new_channels_last, with_axis
from .onednn_primitives import CACHE_SIZE, Layout, bound, dense_strides, layout, new_tensor, numel, servable
from .recorded import PyLayer
from .scope import noted


@functools.lru_cache(maxsize=CACHE_SIZE)
def _rows(shapes, axis, last):
    """Return (shape of tensors of these shapes one after the other along an axis, rows, elements of a row of each, all
    of a shape but for that axis); a row goes from one index before `axis` to the next, a pixel's channels if `last`."""
    shape = [*shapes[0]]
    shape[axis] = sum(each[axis] for each in shapes)
    inner = 1 if last else math.prod(shape[axis + 1 :])
    return shape, math.prod(shape) // (shape[axis] * inner), numbers(*(each[axis] * inner for each in shapes))


def _join(rows, sizes, parts, whole, apart):
    pointers = addresses(*(part.data_ptr() for part in parts))
    load().join_rows(rows, len(parts), sizes, whole.element_size(), pointers, whole.data_ptr(), apart)


def joined(axis, last, tensors):
    """Return the tensors one after the other along an axis: the channels of [B, H, W, C] if `last`, else of rows."""
    tensors = [(channels_last if last else contiguous)(tensor) for tensor in tensors]
    shape, rows, sizes = _rows(tuple(tuple(tensor.shape) for tensor in tensors), axis, last)
    out = (new_channels_last if last else new_tensor)(tensors[0].dtype, shape)
    _join(rows, sizes, tensors, out, apart=False)
    return out


def parted(axis, last, whole, shapes):
    """Return the parts of a tensor in the memory order named, of these shapes one after the other along an axis."""
    _, rows, sizes = _rows(tuple(map(tuple, shapes)), axis, last)
    parts = [(new_channels_last if last else new_tensor)(whole.dtype, shape) for shape in shapes]
    _join(rows, sizes, parts, whole, apart=True)
    return parts


class Concat(PyLayer):
    """The tensors one after the other along an axis."""

    @staticmethod
    def forward(ctx, axis, *tensors):
        """Return the whole; images that lie as [B, H, W, C] and are joined along C stay so."""
        last = axis == 1 and are_rows(tensors[0])
        ctx.needs = [not tensor.stop_gradient for tensor in tensors]
        ctx.constants = (axis, last, [tensor.shape for tensor in tensors])
        return joined(axis, last, tensors)

    @staticmethod
    def backward(ctx, gradient):
        """Return each tensor's part of the gradient."""
        axis, last, shapes = ctx.constants
        gradient = (channels_last if last else contiguous)(gradient)
        parts = parted(axis, last, gradient, shapes)
        return tuple(part if needed else None for part, needed in zip(parts, ctx.needs, strict=True))


def concat(original, args, kwargs):
    """Kernel of ``concat(tensors, axis)`` for tensors of one dtype."""
    tensors, axis = bound(args, kwargs, ("x", "axis"), (0,))
    if not isinstance(tensors, (list, tuple)) or not tensors or not isinstance(axis, int) or not servable(*tensors):
        return NotImplemented
    first, *others = (tensor.shape for tensor in tensors)
    axis = axis + len(first) if axis < 0 else axis
    if not 0 <= axis < len(first):
        return NotImplemented
    for shape in others:
        if shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            return NotImplemented  # Paddle words the error
    return Concat.apply(axis, *tensors)


def stack(original, args, kwargs):
    """Kernel of ``stack(tensors, axis)`` whose gradients are asked for: views with a further axis are concatenated."""
    tensors, axis = bound(args, kwargs, ("x", "axis"), (0,))
    if not isinstance(tensors, (list, tuple)) or not tensors or type(axis) is not int:
        return NotImplemented
    rank = tensors[0].ndim + 1
    if not -rank <= axis < rank or not asks_gradient(*tensors) or sum(map(numel, tensors)) < LARGE:
        return NotImplemented
    return concat(original, ([with_axis(tensor, axis % rank) for tensor in tensors], axis % rank), {})


class Split(PyLayer):
    """Parts of a tensor along an axis."""

    @staticmethod
    def forward(ctx, x, axis, sections):
        """Return the parts, dense; channels of images that lie as [B, H, W, C] stay so."""
        last = axis == 1 and are_rows(x)
        shapes = [[*x.shape[:axis], size, *x.shape[axis + 1 :]] for size in sections]
        ctx.set_materialize_grads(False)  # of parts that nothing reads
        ctx.constants = (axis, last, x.dtype, shapes)
        return tuple(parted(axis, last, x if last else contiguous(x), shapes))

    @staticmethod
    def backward(ctx, *gradients):
        """Return the gradient of the whole."""
        axis, last, dtype, shapes = ctx.constants
        parts = [
            noted(paddle_names.full, shape, 0.0, dtype, CPU) if gradient is None else gradient
            for gradient, shape in zip(gradients, shapes, strict=True)
        ]
        return joined(axis, last, parts)


def split(original, args, kwargs):
    """Kernel of ``split(x, sections, axis)`` and of ``split_with_num(x, number of sections, axis)``."""
    x, sections, axis = bound(args, kwargs, ("x", "sections", "axis"), (0,))
    if not servable(x) or not isinstance(axis, int):
        return NotImplemented
    if not -x.ndim <= axis < x.ndim:
        return NotImplemented  # Paddle words the error
    axis %= x.ndim
    size = x.shape[axis]
    if isinstance(sections, int):
        sections = [size // sections] * sections if sections > 0 else []
    if not isinstance(sections, (list, tuple)) or not all(isinstance(part, int) for part in sections):
        return NotImplemented
    sections = [size - sum(sections) - 1 if part == -1 else part for part in sections]
    if min(sections, default=0) < 1 or sum(sections) != size:
        return NotImplemented
    return list(Split.apply(x, axis, sections))


def _reshaped(x, shape, last):
    """Return a tensor of any strides, read as another shape, dense, or as [B, H, W, C] where it was read from images
    that lie so: one copy each way."""
    source = layout(x)
    target, sizes, axes = _places(source, last)

    def there(x):
        out = (new_channels_last if last else new_tensor)(x.dtype, shape)
        copy_layout(source, target, x.data_ptr(), out.data_ptr())
        return out

    def back(gradient):  # in the memory order of x
        gradient = (channels_last if last else contiguous)(gradient)
        out = paddle_names.transpose(new_tensor(gradient.dtype, sizes), axes)
        copy_layout(target, layout(out), gradient.data_ptr(), out.data_ptr())
        return out

    return LinearMap.apply(x, there, back)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _places(source, last):
    """Return (the layout of a tensor's numbers where the result has them, the shape of a dense tensor in the memory
    order of the source, the transposition of that to the source's shape)."""
    data_type, shape, strides = source
    axes = range(len(shape))
    target = (0, *axes[-2:], *axes[1:-2]) if last else tuple(axes)
    order = sorted(axes, key=lambda axis: -strides[axis])
    return Layout(data_type, shape, _strides(shape, target)), [shape[axis] for axis in order], [*map(order.index, axes)]


def _strides(shape, order):
    """Return the strides of a dense tensor whose axes lie in memory in this order."""
    dense = dense_strides([shape[axis] for axis in order])
    return tuple(dense[order.index(axis)] for axis in range(len(shape)))


def is_view(x, shape):
    """Return whether a tensor can be read as another shape without a copy."""
    return _is_view(tuple(x.shape), tuple(x.strides), tuple(shape))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _is_view(own_shape, strides, shape):
    sizes = [(size, step) for size, step in zip(own_shape, strides, strict=True) if size != 1]
    wanted = [size for size in shape if size != 1]
    while sizes and wanted:
        size, step = sizes.pop()
        while sizes and sizes[-1][1] == size * step:
            size *= sizes.pop()[0]
        while size > 1 and wanted:
            if size % wanted[-1]:
                return False
            size //= wanted.pop()
    return True


def reshape(original, args, kwargs):
    """Kernel of ``reshape(x, shape)`` where Paddle would copy a strided tensor element by element."""
    x, shape = bound(args, kwargs, ("x", "shape"), ())
    if x.is_contiguous() or not servable(x):
        return NotImplemented
    if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) for size in shape) or 0 in x.strides:
        return NotImplemented
    shape = [x.shape[index] if size == 0 and index < x.ndim else size for index, size in enumerate(shape)]
    known = math.prod(size for size in shape if size != -1)
    if min(shape, default=0) < -1 or known < 1 or numel(x) % known:
        return NotImplemented  # Paddle words the error
    shape = [numel(x) // known if size == -1 else size for size in shape]
    if math.prod(shape) != numel(x) or is_view(x, shape):
        return NotImplemented
    # Channels that were exchanged within each pixel.
    last = len(shape) == 4 and x.ndim > 4 and shape[2:] == x.shape[-2:] and shape[0] == x.shape[0]
    last = last and min(x.strides[-2:]) > max(x.strides[1:-2])
    return _reshaped(x, shape, last)


KERNELS = {"concat": concat, "stack": stack, "split": split, "split_with_num": split}
