"""Maximum and mean pooling of image batches [B, C, H, W], forward and backward.

Two things differ from the reference: a maximum over NaN and numbers is a number, and where maximum windows overlap,
each sum of gradients (four at most for 3x3 windows at stride 2) is rounded to bfloat16.
"""

import functools
from typing import NamedTuple

import paddle

from . import compiled
from . import onednn_library as onednn
from .onednn_memory import channels_last, new_channels_last
from .onednn_primitives import CACHE_SIZE, bound, cache, layout, new_tensor, servable
from .onednn_windows import geometry_of, output_size
from .recorded import PyLayer
from .saved import save, saved

_UINT8 = paddle.uint8


def _operands(builder, source, target, window):
    """Return the operands of a description, forward and backward."""
    size, strides, before, after = map(onednn.dimensions, window)
    return builder.md(source), builder.md(target), strides, size, onednn.dimensions((0, 0)), before, after


@compiled.counterpart(compiled.pooling)
def _describe_pooling(library, builder, kind, algorithm, *key):
    keeps = algorithm == onednn.POOL_MAX and kind == onednn.FORWARD_TRAINING
    description = library.description("pooling_forward", kind, algorithm, *_operands(builder, *key), None)
    return description, (onednn.SRC, onednn.DST, *(onednn.WORKSPACE,) * keeps)


@compiled.counterpart(compiled.pooling_backward)
def _describe_pooling_backward(library, builder, algorithm, *key):
    operands = _operands(builder, *key)
    hint = builder.hint("pooling_forward", onednn.FORWARD_TRAINING, algorithm, *operands, None)
    description = library.description("pooling_backward", algorithm, *operands, hint, None)
    return description, (onednn.DIFF_DST, onednn.DIFF_SRC, *(onednn.WORKSPACE,) * (algorithm == onednn.POOL_MAX))


class Pooling(PyLayer):
    """Maximum or mean over windows. The maximum keeps the positions (one byte each mostly), the mean keeps nothing."""

    @staticmethod
    def forward(ctx, x, algorithm, window, outputs):
        """Return the pooled images, [B, C, *outputs]."""
        needs_gradient = not x.stop_gradient
        x = channels_last(x)
        ctx.shape = x.shape
        out = new_channels_last(x.dtype, [*ctx.shape[:2], *outputs])
        ctx.key = (algorithm, layout(x), layout(out), window)
        if algorithm == onednn.POOL_MAX and needs_gradient:
            primitive = cache.get(_describe_pooling, onednn.FORWARD_TRAINING, *ctx.key)
            positions = new_tensor(_UINT8, [primitive.sizes[2]])
            primitive(x.data_ptr(), out.data_ptr(), positions.data_ptr())
            save(ctx, positions)
        else:
            cache.get(_describe_pooling, onednn.FORWARD_INFERENCE, *ctx.key)(x.data_ptr(), out.data_ptr())
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        gradient = channels_last(gradient)
        out = new_channels_last(gradient.dtype, ctx.shape)
        pointers = [gradient.data_ptr(), out.data_ptr()]
        if ctx.key[0] == onednn.POOL_MAX:
            (positions,) = saved(ctx)
            pointers.append(positions.data_ptr())
        cache.get(_describe_pooling_backward, *ctx.key)(*pointers)
        return out


POOL = ("x", "kernel_size", "strides", "paddings", "ceil_mode", "exclusive", "data_format", "pooling_type",
        "global_pooling", "adaptive", "padding_algorithm")  # fmt: skip


class Call(NamedTuple):
    """What one call of the operator asks for; window: (size, strides, padding before, padding after)."""

    x: paddle.Tensor
    window: tuple
    outputs: tuple
    maximum: bool
    with_padding: bool
    ceil_mode: bool
    adaptive: bool


def described(args, kwargs):
    """Return the :class:`Call` of ``pool2d(...)``, None for what no kernel computes or Paddle words the error for."""
    values = bound(args[: len(POOL)], kwargs, POOL, ())
    x, size, strides, padding, ceil_mode, exclusive, data_format, kind, whole, adaptive, algorithm = values
    if not servable(x) or len(x.shape) != 4 or data_format != "NCHW" or algorithm != "EXPLICIT":
        return None
    if not isinstance(size, (list, tuple)) or not all(isinstance(value, int) and value > 0 for value in size):
        return None
    size, image = tuple(size), tuple(x.shape[2:])
    if whole or adaptive and size == (1, 1):
        size = strides = image
        padding, ceil_mode, adaptive = (0, 0), False, False
    if adaptive:
        return Call(x, (), size, kind == "max", False, False, True)
    found = windows(image, size, tuple(strides), tuple(padding), bool(ceil_mode))
    if found is None:
        return None
    window, outputs = found
    return Call(x, window, outputs, kind == "max", not exclusive, bool(ceil_mode), False)


@functools.lru_cache(maxsize=CACHE_SIZE)
def windows(image, size, strides, padding, ceil_mode):
    """Return ((size, strides, padding before, padding after), (height, width) of the result), or None for windows that
    lie outside of the image."""
    if min(strides) < 1:
        return None  # Paddle words the error
    strides, _, before, after = geometry_of(size, strides, (1, 1), padding)
    if ceil_mode:  # as if there was more padding at the end
        after = tuple(
            last + -(length + first + last - extent) % stride
            for length, extent, stride, first, last in zip(image, size, strides, before, after, strict=True)
        )
    outputs = tuple(
        output_size(*numbers) for numbers in zip(image, size, strides, (0, 0), before, after, strict=True)
    )
    starts = [(count - 1) * stride - first for count, stride, first in zip(outputs, strides, before, strict=True)]
    if min(outputs) < 1 or any(start >= length for start, length in zip(starts, image, strict=True)):
        return None
    return (size, strides, before, after), outputs


def pool2d(original, args, kwargs):
    """Kernel of ``pool2d(...)``: the maximum of fixed windows, and the mean of those that do not overlap."""
    call = described(args, kwargs)
    if call is None or call.adaptive:
        return NotImplemented
    if call.maximum:
        return Pooling.apply(call.x, onednn.POOL_MAX, call.window, call.outputs)
    size, strides, *_ = call.window
    if strides[0] < size[0] or strides[1] < size[1] or call.ceil_mode:
        return NotImplemented  # oneDNN sums the gradients of overlapping windows in bfloat16
    algorithm = onednn.POOL_AVG_INCLUDE_PADDING if call.with_padding else onednn.POOL_AVG_EXCLUDE_PADDING
    return Pooling.apply(call.x, algorithm, call.window, call.outputs)
