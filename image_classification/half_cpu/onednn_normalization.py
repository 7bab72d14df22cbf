"""Softmax and layer normalisation, on bfloat16 or float32 tensors.

Statistics, exponentials and sums are float32 in both; the result is rounded once.
"""

import math

import paddle

from . import compiled, paddle_names
from . import onednn_library as onednn
from .arguments import FLOAT32
from .compiled_broadcast import memory_axes
from .compiled_library import load
from .onednn_memory import contiguous, in_dtype, in_float32, new_like, ordered_like, settled
from .onednn_primitives import DATA_TYPES, bound, cache, data_type, dense, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, own_result, saved
from .scope import constant


def _is_compiled_softmax(rows):
    """Whether oneDNN takes 1.1 to 1.6 times as long; of long float32 rows it takes 0.8 to 0.9."""
    return rows.data_type != onednn.FLOAT32 or rows.shape[1] <= 1000


@compiled.counterpart(compiled.softmax, _is_compiled_softmax)
def _describe_softmax(library, builder, rows):
    md = builder.md(rows)
    description = library.description("softmax_forward", onednn.FORWARD_TRAINING, onednn.SOFTMAX, md, md, 1, None)
    return description, (onednn.SRC, onednn.DST)


@compiled.counterpart(compiled.softmax_backward, lambda rows: True)  # as fast, and nearer to the exact one
def _describe_softmax_backward(library, builder, rows):
    md = builder.md(rows)
    hint = builder.hint("softmax_forward", onednn.FORWARD_TRAINING, onednn.SOFTMAX, md, md, 1, None)
    description = library.description("softmax_backward", onednn.SOFTMAX, md, md, md, 1, hint, None)
    return description, (onednn.DST, onednn.DIFF_DST, onednn.DIFF_SRC)


def softmax_rows(pointer, out_pointer, rows):
    """Write the softmax of each row of the matrix at `pointer`; both may be the same memory."""
    cache.get(_describe_softmax, rows)(pointer, out_pointer)


def softmax_rows_backward(result_pointer, gradient_pointer, out_pointer, rows):
    """Write the gradient of a softmax from its result and its result's gradient; the last two may be the same."""
    cache.get(_describe_softmax_backward, rows)(result_pointer, gradient_pointer, out_pointer)


class Softmax(PyLayer):
    """Softmax over any axis; over other ones than the last it is a compiled kernel's."""

    @staticmethod
    def forward(ctx, x, sizes):
        """Return the probabilities in the dtype and memory order of x, which is [outer, columns, inner] there."""
        x, ctx.sizes = settled(x), sizes
        out = new_like(x)
        outer, columns, inner = sizes
        if inner == 1:
            softmax_rows(x.data_ptr(), out.data_ptr(), dense(x.dtype, outer, columns))
        else:
            load().softmax_columns(data_type(x), *sizes, x.data_ptr(), out.data_ptr())
        keep(ctx, own_result(out))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        (result,) = saved(ctx)
        gradient, out = ordered_like(gradient, result), new_like(result)
        places = result.data_ptr(), gradient.data_ptr(), out.data_ptr()
        outer, columns, inner = ctx.sizes
        if inner == 1:
            softmax_rows_backward(*places, dense(result.dtype, outer, columns))
        else:
            load().softmax_columns_backward(data_type(result), *ctx.sizes, *places)
        return out


def softmax(original, args, kwargs):
    """Kernel of ``softmax(x, axis)``."""
    x, axis = bound(args, kwargs, ("x", "axis"), (-1,))
    if not servable(x) or type(axis) is not int:
        return NotImplemented
    if not -x.ndim <= axis < x.ndim:
        return NotImplemented
    order = memory_axes(x)
    place = order.index(axis % x.ndim)
    sizes = [x.shape[axis] for axis in order]
    inner = math.prod(sizes[place + 1 :])
    if inner > 1 and not compiled.formats():
        return NotImplemented
    return Softmax.apply(x, (math.prod(sizes[:place]), sizes[place], inner))


def _layer_norm_forward(builder, rows, result, statistics, epsilon):
    return (
        "layer_normalization_forward",
        onednn.FORWARD_TRAINING,
        builder.md(rows),
        builder.md(result),
        builder.md(statistics),
        onednn.FLOAT32,  # of scale and shift: for bfloat16 ones oneDNN has its slow reference code only
        epsilon,
        onednn.USE_SCALE | onednn.USE_SHIFT,
        None,
    )


def _is_compiled(rows, result, *others):
    """Whether oneDNN has no such norm, or takes 1.1 to 2 times as long: for half numbers in rows that are not long."""
    return result != rows or rows.data_type != onednn.FLOAT32 and rows.shape[1] <= 4096


@compiled.counterpart(compiled.layer_norm, _is_compiled)
def _describe_layer_norm(library, builder, *key):
    description = library.description(*_layer_norm_forward(builder, *key))
    return description, (onednn.SRC, onednn.SCALE, onednn.SHIFT, onednn.DST, onednn.MEAN, onednn.VARIANCE)


@compiled.counterpart(compiled.layer_norm_backward, lambda *key: True)  # takes 0.5 to 0.9 of oneDNN's time
def _describe_layer_norm_backward(library, builder, rows, result, statistics, epsilon):
    md = builder.md(rows)
    description = library.description(
        "layer_normalization_backward",
        onednn.BACKWARD,
        md,
        builder.md(result),
        md,
        builder.md(statistics),
        onednn.FLOAT32,
        onednn.FLOAT32,
        epsilon,
        onednn.USE_SCALE | onednn.USE_SHIFT,
        builder.hint(*_layer_norm_forward(builder, rows, result, statistics, epsilon)),
        None,
    )
    numbers = [onednn.SRC, onednn.MEAN, onednn.VARIANCE, onednn.SCALE, onednn.DIFF_DST]
    numbers += [onednn.DIFF_SRC, onednn.DIFF_SCALE, onednn.DIFF_SHIFT]
    return description, [*numbers, onednn.SHIFT]  # which oneDNN 3.6 counts as an input and does not read


class LayerNorm(PyLayer):
    """Normalisation of each row [columns] to mean 0 and variance 1, then scale and shift.

    `windows`, (height, width, window, shift), asks for rows in the order of the windows of maps [B, height, width,
    columns] that are shifted cyclically, in this `shape`; compiled kernels only, as for a dtype that is not that of x.
    """

    @staticmethod
    def forward(ctx, x, scale, shift, epsilon, dtype, windows=None, shape=None):
        """Return the normalised rows, as long as the scale, in a dtype; it is that of x where x is half."""
        ctx.needs = (not x.stop_gradient, not scale.stop_gradient, not shift.stop_gradient)
        ctx.parameter_dtype = scale.dtype
        x, scale, shift = contiguous(x), in_float32(scale), in_float32(shift)
        out, columns = new_tensor(dtype, shape or x.shape), numel(scale)
        rows = numel(x) // columns
        mean, variance = new_tensor(FLOAT32, [rows]), new_tensor(FLOAT32, [rows])
        layouts = dense(x.dtype, rows, columns), dense(dtype, rows, columns), dense(FLOAT32, rows)
        ctx.key = (*layouts, epsilon) if windows is None else (*layouts, epsilon, windows)
        cache.get(_describe_layer_norm, *ctx.key)(*pointers(x, scale, shift, out, mean, variance))
        keep(ctx, x, scale, mean, variance)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x, scale and shift."""
        x, scale, mean, variance = saved(ctx)
        gradient = contiguous(gradient)
        results = [new_tensor(tensor.dtype, tensor.shape) for tensor in (x, scale, scale)]
        read = x, mean, variance, scale, gradient
        cache.get(_describe_layer_norm_backward, *ctx.key)(*pointers(*read, *results, scale))
        results[1:] = [in_dtype(result, ctx.parameter_dtype) for result in results[1:]]
        return tuple(result if needed else None for result, needed in zip(results, ctx.needs, strict=True))


def scale_and_shift(scale, shift, shape, dtype):
    """Return the parameters of a norm, ones and zeros for None."""
    pairs = (scale, 1.0), (shift, 0.0)
    return [constant(paddle.full, shape, value, dtype) if given is None else given for given, value in pairs]


def layer_norm(original, args, kwargs):
    """Kernel of ``layer_norm(x, scale, bias, epsilon, begin_norm_axis)``; a half x may have float32 parameters."""
    values = bound(args, kwargs, ("x", "scale", "bias", "epsilon", "begin_norm_axis"), (None, None, 1e-5, 1))
    x, scale, shift, epsilon, axis = values
    if not servable(x) or not 0 < axis < x.ndim:
        return NotImplemented
    given, shape = [tensor for tensor in (scale, shift) if tensor is not None], [math.prod(x.shape[axis:])]
    dtype = given[0].dtype if given else FLOAT32
    if dtype not in DATA_TYPES or any(tensor.dtype is not dtype or tensor.shape != shape for tensor in given):
        return NotImplemented  # Paddle words the error
    return LayerNorm.apply(x, *scale_and_shift(scale, shift, shape, dtype), float(epsilon), x.dtype)


def product_norm(original, args, kwargs):
    """Kernel of ``product_norm(x, norm)`` for a plain LayerNorm of float32 numbers, rounded to `dtype`."""
    return rounded_norm(*bound(args, kwargs, ("x", "norm", "dtype"), ()))


def rounded_norm(x, norm, dtype, *order):
    """Return the result of a plain LayerNorm in a half dtype, its rows in an order that :class:`LayerNorm` knows."""
    if not compiled.formats():
        return NotImplemented
    if not paddle_names.is_plain(norm, paddle.nn.LayerNorm) or not servable(x) or x.dtype is not FLOAT32:
        return NotImplemented
    scale, shift = norm.weight, norm.bias
    if scale is None or shift is None or scale.dtype not in DATA_TYPES or shift.dtype is not scale.dtype:
        return NotImplemented
    if x.shape[-scale.ndim :] != scale.shape or order and scale.ndim != 1:
        return NotImplemented  # Paddle words the error
    return LayerNorm.apply(x, scale, shift, paddle_names.norm_epsilon(norm), dtype, *order)
