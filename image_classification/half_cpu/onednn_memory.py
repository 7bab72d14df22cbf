"""Copies of tensors in another memory order or number format.

oneDNN's copies use all threads and vector loads; Paddle's own copy of a strided tensor walks it element by element in
one thread. A tensor is settled when it lies in memory as its shape says or, for images [B, C, H, W], as [B, H, W, C].
"""

import functools
import math

import paddle

from . import compiled, copies, paddle_names
from . import onednn_library as onednn
from .arguments import FLOAT32, HALF_NAMES, replace_tensors
from .compiled_worth import LARGE, asks_gradient
from .linear_map import LinearMap
from .onednn_primitives import (
    CACHE_SIZE,
    DATA_TYPES,
    Layout,
    bound,
    cache,
    data_type,
    dense,
    dense_strides,
    is_known,
    layout,
    new_tensor,
    numel,
    servable,
)
from .scope import cast_once

_WHOLE = frozenset((paddle.bool, paddle.uint8, paddle.int8, paddle.int16, paddle.int32, paddle.int64))


@compiled.counterpart(compiled.reorder, copies.is_compiled)
def _describe_reorder(library, builder, source, target):
    return library.description("reorder", builder.md(source), builder.md(target), None), (onednn.SRC, onednn.DST)


def reorder_like(tensor, out):
    """Return `out` with the content of a tensor of the same shape and dtype, memory orders as they are."""
    if 0 in tensor.strides or not compiled.formats() and copies.overlaps(layout(tensor)):
        # By Paddle, which rearranges what it is called on.
        tensor = paddle_names.transpose(tensor, list(range(tensor.ndim))).contiguous()
    copy_layout(layout(tensor), layout(out), tensor.data_ptr(), out.data_ptr())
    return out


def copy_layout(source, target, pointer, out_pointer):
    """Copy numbers from one place to another, each read by its layout."""
    cache.get(_describe_reorder, source, target)(pointer, out_pointer)


def contiguous(tensor):
    """Return the tensor itself if it is dense row-major, else a dense copy."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dtype not in DATA_TYPES or not numel(tensor):
        return tensor.contiguous()
    return reorder_like(tensor, new_tensor(tensor.dtype, tensor.shape))


def lies_dense(tensor):
    """Return whether the elements lie one after the other as the shape says: strides of axes of size one count for
    nothing here, and `tensor.is_contiguous()` may be False."""
    return tensor.is_contiguous() or _lies_dense(tuple(tensor.shape), tuple(tensor.strides))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _lies_dense(shape, strides):
    axes = zip(shape, strides, dense_strides(shape), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in axes)


def is_channels_last(tensor):
    """Return True for an image batch [B, C, H, W] that lies in memory as [B, H, W, C]."""
    shape = tensor.shape
    if len(shape) != 4:
        return False
    _, channels, height, width = shape
    return tensor.strides == [height * width * channels, 1, width * channels, channels]


def are_rows(tensor):
    """Return True for images [B, C, H, W] that lie in memory as [B, H, W, C] and not as [B, C, H, W], too."""
    return not tensor.is_contiguous() and is_channels_last(tensor)


def is_settled(tensor):
    """Return whether a tensor is dense, row-major or channels-last."""
    return tensor.is_contiguous() or is_channels_last(tensor)


def as_rows(images):
    """Return the dense view [B, H, W, C] of images that lie so."""
    return paddle_names.transpose(images, [0, 2, 3, 1])


def as_images(rows):
    """Return the view [B, C, H, W] of rows [B, H, W, C]."""
    return paddle_names.transpose(rows, [0, 3, 1, 2])


def new_channels_last(dtype, shape):
    """Return a tensor [B, C, H, W] with arbitrary content that lies in memory as [B, H, W, C]."""
    batch, channels, height, width = shape
    return as_images(new_tensor(dtype, [batch, height, width, channels]))


def channels_last_layout(number, shape):
    """Return the layout of images [B, C, H, W] that lie as [B, H, W, C]."""
    _, channels, height, width = shape
    return Layout(number, shape, (height * width * channels, 1, width * channels, channels))


def channels_last(tensor):
    """Return the tensor, or a copy of it, in the memory order [B, H, W, C]."""
    if is_channels_last(tensor):
        return tensor
    return reorder_like(tensor, new_channels_last(tensor.dtype, tensor.shape))


def settled(tensor):
    """Return the tensor itself if it is dense row-major or channels-last, else a dense copy."""
    return tensor if is_settled(tensor) else contiguous(tensor)


def passed_on(gradient):
    """Return the gradient of a result, settled, as that of an operand: a copy. Paddle adds what else comes back to an
    operand in place, and a hook, or another operand, may have the gradient."""
    return convert(gradient, new_like(gradient))


def new_like(tensor, dtype=None):
    """Return a tensor with arbitrary content and the shape and memory order of a settled tensor."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.is_contiguous():
        return new_tensor(dtype, tensor.shape)
    return new_channels_last(dtype, tensor.shape)


def ordered_like(tensor, other):
    """Return the tensor, or a copy of it, in the memory order of a settled tensor of the same shape."""
    if tensor.strides == other.strides:
        return tensor
    return reorder_like(tensor, new_like(other))


def converted(tensor, dtype):
    """Return a settled copy of a tensor of any strides in another number format; not recorded by autograd."""
    tensor = settled(tensor)
    return convert(tensor, new_like(tensor, dtype))


def convert(tensor, out):
    """Return `out` with the content of a tensor of the same shape and memory order, both settled."""
    _conversion(data_type(tensor), data_type(out), numel(tensor))(tensor.data_ptr(), out.data_ptr())
    return out


@functools.lru_cache(maxsize=CACHE_SIZE)
def _conversion(source, target, count):
    """Return the primitive that copies so many numbers from one format to another."""
    layouts = (Layout(number, (count,), (1,)) for number in (source, target))
    return cache.get(_describe_reorder, *layouts)


def in_dtype(tensor, dtype):
    """Return the tensor itself or a copy in another number format; not recorded by autograd."""
    return tensor if tensor.dtype is dtype else cast_once(tensor, dtype, converted)


def in_float32(tensor):
    """Return the tensor itself or a float32 copy, dense; not recorded by autograd."""
    if tensor.dtype is FLOAT32 and tensor.is_contiguous():
        return tensor
    return in_dtype(contiguous(tensor), FLOAT32)


def compact(args, tensors):
    """Return `args` with dense images: an operator of Paddle's would copy them element by element first."""

    def is_strided(tensor):
        return are_rows(tensor) and servable(tensor)

    def dense_if_strided(tensor):
        return LinearMap.apply(tensor, contiguous, channels_last) if is_strided(tensor) else tensor

    if not any(map(is_strided, tensors)):
        return args
    return replace_tensors(args, {}, dense_if_strided)[0]


def cast(original, args, kwargs):
    """Kernel of ``cast(x, dtype)`` between half formats and float32, and of images [B, H, W, C] to their own format.

    Many whole numbers become half ones by float32, as in Paddle, which converts them one by one."""
    tensor, dtype = bound(args, kwargs, ("x", "dtype"), ())
    if tensor.dtype in _WHOLE and dtype in HALF_NAMES and numel(tensor) >= LARGE:
        return converted(original(tensor, FLOAT32), dtype)
    if not servable(tensor) or not is_known(dtype) or tensor.dtype is dtype and tensor.is_contiguous():
        return NotImplemented
    own = tensor.dtype

    def rounded(tensor):
        return cast_once(tensor, dtype, converted).detach()  # what is kept of a frozen weight has no history

    return LinearMap.apply(tensor, rounded, lambda gradient: converted(gradient, own))


def write(original, args, kwargs):
    """Kernel of ``write(half, value)``: a half tensor takes a float32 one, rounded, in one pass instead of two."""
    half, value = args
    if paddle.is_grad_enabled() or value.dtype is not FLOAT32 or half.dtype is FLOAT32:
        return NotImplemented
    if not servable(value) or not servable(half) or half.shape != value.shape:
        return NotImplemented
    if not half.is_contiguous() or not value.is_contiguous():
        return NotImplemented
    convert(value, half)
    paddle_names.bump_version(half)
    return half


def _view(x, view, back, axes):
    """Return the view with other axes of size one; Paddle would copy a gradient that comes back strided, as that of
    images does, number by number."""
    return LinearMap.apply(x, lambda x: view(x, axes), lambda gradient: back(gradient, axes))


def _unit_axes(back, places):
    def kernel(original, args, kwargs):
        x, axes = bound(args, kwargs, ("x", "axis"), ())
        if not servable(x) or x.is_contiguous() and not (asks_gradient(x) and numel(x) >= LARGE):
            return NotImplemented
        axes = [axes] if isinstance(axes, int) else axes
        if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, int) for axis in axes) or not axes:
            return NotImplemented
        axes = places(x.shape, axes)
        return NotImplemented if axes is None else _view(x, original, back, axes)

    return kernel


def _removed(shape, axes):
    """Return which axes of size one go, in ascending order, or None for others."""
    rank = len(shape)
    if any(not -rank <= axis < rank or shape[axis] != 1 for axis in axes):
        return None
    found = sorted({axis % rank for axis in axes})
    return found if len(found) == len(axes) else None


def _inserted(shape, axes):
    """Return where further axes are in the end, or None: they are inserted one after the other, in the order given."""
    found = [False] * len(shape)
    for axis in axes:
        if not -len(found) - 1 <= axis <= len(found):
            return None
        found.insert(axis + len(found) + 1 if axis < 0 else axis, True)
    return [place for place, is_new in enumerate(found) if is_new]


squeeze, unsqueeze = _unit_axes(paddle_names.unsqueeze, _removed), _unit_axes(paddle_names.squeeze, _inserted)


def without_axis(x, axis):
    """Return the view without an axis of size one."""
    return _view(x, paddle_names.squeeze, paddle_names.unsqueeze, [axis])


def with_axis(x, axis):
    """Return the view with a further axis of size one."""
    return _view(x, paddle_names.unsqueeze, paddle_names.squeeze, [axis])


def rearrange(original, args, kwargs):
    """Kernel of ``rearrange(x, split, order, shape)`` for shapes without -1."""
    x, split, order, shape = bound(args, kwargs, ("x", "split", "order", "shape"), ())
    if not servable(x) or min(*split, *shape) < 1 or sorted(order) != list(range(len(split))):
        return NotImplemented
    if not math.prod(split) == math.prod(shape) == numel(x):
        return NotImplemented  # Paddle words the error
    strides, sizes = dense_strides(split), tuple(split[axis] for axis in order)
    source = Layout(data_type(x), sizes, tuple(strides[axis] for axis in order))
    target, own = dense(x.dtype, *sizes), x.shape
    return LinearMap.apply(x, lambda x: _copied(x, source, target, shape), lambda x: _copied(x, target, source, own))


def _copied(x, source, target, shape):
    """Return a dense copy of `shape`, both read by layouts of the same sizes."""
    x, out = contiguous(x), new_tensor(x.dtype, shape)
    copy_layout(source, target, x.data_ptr(), out.data_ptr())
    return out
