"""Matrix products: linear layers and batched matmul, forward and backward, on bfloat16 or float32 tensors.

Sums are kept in float32 and rounded once, when the result is written. Backward passes keep the inputs in the dtype they
came in, so a bfloat16 layer saves half of what a float32 layer saves.
"""

import functools
import math

import paddle

from . import compiled, paddle_names
from . import onednn_library as onednn
from .arguments import CPU
from .compiled_long_products import is_long, long_product
from .compiled_tiles import is_tiles
from .onednn_matrices import folded, is_misread, matrix, view, well_read, without_odd_strides
from .onednn_memory import contiguous, copy_layout, in_dtype
from .onednn_packing import packing
from .onednn_primitives import (
    CACHE_SIZE,
    DATA_TYPES,
    bound,
    cache,
    dense,
    new_tensor,
    numel,
    operand_numbers,
    servable,
)
from .recorded import PyLayer
from .saved import keep, saved
from .scope import constant, is_kept, made_once

_UINT8 = paddle.uint8
FEW = 8  # rows, which cpp/few_rows.h sums at a time


def _arguments(builder, left, right, bias, out, post_ops):
    left, right, out = (builder.md(without_odd_strides(one)) for one in (left, right, out))
    return "matmul", left, right, builder.md(bias), out, builder.attributes(post_ops)


def _compiled(*key):
    return long_product(*key) if is_long(*key) and not is_tiles(*key) else compiled.matmul(*key)


@functools.cache
def takes_signals():
    """Whether a signal may be handled while oneDNN multiplies float32 matrices: without AVX-512 not."""
    return onednn.load().has(onednn.AVX512)


def _is_own(*key):
    is_wide = key[0].data_type == onednn.FLOAT32
    return is_tiles(*key) or is_long(*key) or is_wide and (not takes_signals() or _reads_pages(*key))


def _reads_pages(left, right, *rest):
    """Whether a few float32 rows are multiplied with rows that begin 4 KiB apart: oneDNN, which reads some columns of
    all of these at a time, takes up to twice as long as to read each row once."""
    if len(left.shape) != 2 or left.shape[0] > FEW or right.strides is None or not compiled.formats():
        return False
    return right.strides[1] == 1 and right.strides[0] % 1024 == 0


@compiled.counterpart(_compiled, _is_own)
def _describe(library, builder, *key):
    *_, bias, _, post_ops = key
    names = [onednn.SRC, onednn.WEIGHTS, onednn.DST]
    if bias is not None:
        names.append(onednn.BIAS)
    return library.description(*_arguments(builder, *key)), names + operand_numbers(post_ops)


def _describe_packing(library, builder, *key):
    """The rearrangement of a plain right factor to the layout that the product of this key chose for it."""
    left, right, *rest = key
    chosen = builder.hint(*_arguments(builder, left, right._replace(strides=None), *rest))
    packed = library.query_md(chosen, onednn.QUERY_EXEC_ARGUMENT, onednn.WEIGHTS)
    return packing(library, builder, right, packed)


def multiply(left, right, out, bias=None, *, post_ops=(), operands=()):
    """Write ``left @ right (+ bias)``, after the post operations, to ``out``; all are views with as many axes.

    `operands` are the pointers to the second operands of binary post operations, laid out like rows of `out`.
    """
    if bias is None and not operands and out.is_transposed:
        # oneDNN writes rows only; for columns it has its slow reference code.
        left, right, out = right.transposed, left.transposed, out.transposed
    if len(out.layout.shape) > 3 and bias is None and not operands:
        left, right, out = folded(left, right, out)
    key = (left.layout, right.layout, None if bias is None else bias.layout, out.layout, post_ops)
    found = _prepared(is_kept(right.pointer), *key)
    if found is None:
        left, right, whole = map(well_read, (left, right, out))
        multiply(left, right, whole, bias, post_ops=post_ops, operands=operands)
        if whole is not out:
            copy_layout(whole.layout, out.layout, whole.pointer, out.pointer)
        return
    last = operands if bias is None else (bias.pointer, *operands)
    product, pack_right = found
    if pack_right is None:
        product(left.pointer, right.pointer, out.pointer, *last)
        return

    def pack():
        packed = new_tensor(_UINT8, [product.sizes[1]])
        pack_right(right.pointer, packed.data_ptr())
        return packed

    packed = made_once(right.pointer, key, pack)
    product(left.pointer, packed.data_ptr(), out.pointer, *last)


# (whether the right factor is packed once, whether its rows begin 4 KiB apart) -> rows from which float32 is packed
_FLOAT32_ROWS = {(False, False): 512, (False, True): 128, (True, False): 128, (True, True): 1}


@functools.lru_cache(maxsize=CACHE_SIZE)
def _prepared(kept, *key):
    """Return (the primitive of a product, the one that packs its right factor or None where it takes it as it is), or
    None where oneDNN would misread a factor or the result; `kept`: whether the right factor is packed once."""
    left, right, bias, out, post_ops = key
    if any(map(is_misread, (left, right, out))):
        return None
    if _is_own(*key) or not _pays_packing(left, right, kept):
        return cache.get(_describe, *key), None
    product = cache.get(_describe, left, right._replace(strides=None), bias, out, post_ops)
    return product, cache.get(_describe_packing, *key)


def _pays_packing(left, right, kept):
    """Whether a product is faster with its right factor rearranged first, because oneDNN would otherwise copy
    blocks of it again for each block of rows: with five hundred rows or more, and always where it is done once, for a
    frozen weight. The bits are the same. oneDNN's own copy of a transposed one takes five times as long in bfloat16 and
    none in float32. Rows that begin 4 KiB apart push each other out of a cache: then a hundred are enough in float32,
    and any number for a frozen weight. Without AVX512-BF16 the product is not oneDNN's."""
    if left.data_type in compiled.formats() or len(left.shape) != 2 or min(right.shape) < 64:
        return False
    if left.data_type == onednn.FLOAT32:
        step, along = right.strides
        return along == 1 and left.shape[0] >= _FLOAT32_ROWS[kept, step % 1024 == 0]
    rows = 512 if compiled.formats() or right.strides[-1] == 1 else 1024
    return left.shape[0] >= rows or kept


def sum_rows(tensor, rows, columns, dtype):
    """Return the column sums, [columns], of a dense matrix; without compiled kernels a product with ones, which oneDNN
    does 40 times as fast as a reduction over the outer axis."""
    result = new_tensor(dtype, [columns])
    if compiled.formats():
        compiled.sum_rows(dense(tensor.dtype, rows, columns), DATA_TYPES[dtype], tensor.data_ptr(), result.data_ptr())
    else:
        ones = constant(paddle_names.full, [1, rows], 1.0, tensor.dtype, CPU)
        multiply(matrix(ones, 1, rows), matrix(tensor, rows, columns), matrix(result, 1, columns))
    return result


def affine(x, weight, bias, post_ops=()):
    """Return x [..., K] @ weight [K, N] + bias [N], after the post operations, in the dtype of x; x and bias dense,
    weight a view."""
    columns, features = weight.layout.shape
    *outer, _ = x.shape
    rows = math.prod(outer)
    out = new_tensor(x.dtype, [*outer, features])
    multiply(
        matrix(x, rows, columns),
        weight,
        matrix(out, rows, features),
        None if bias is None else matrix(bias, 1, features),
        post_ops=post_ops,
    )
    return out


def _factor(weight, transposed):
    return view(weight).transposed if transposed else view(weight)


class Linear(PyLayer):
    """x [..., K] @ weight [K, N] + bias [N], or with a weight [N, K], transposed. For a half x those of float32 are
    rounded, and so are their gradients, as a cast would."""

    @staticmethod
    def forward(ctx, x, weight, bias, transposed=False):
        """Return [..., N] in the dtype of x."""
        ctx.needs = (not x.stop_gradient, not weight.stop_gradient, bias is not None and not bias.stop_gradient)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        x, weight = contiguous(x), in_dtype(weight, x.dtype)
        bias = None if bias is None else in_dtype(contiguous(bias), x.dtype)
        out = affine(x, _factor(weight, transposed), bias)
        keep(ctx, x, weight)
        ctx.transposed = transposed
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x, weight and bias in their dtypes."""
        x, weight = saved(ctx)
        needs_x, needs_weight, needs_bias = ctx.needs
        factor = _factor(weight, ctx.transposed)
        columns, features = factor.layout.shape
        rows = numel(x) // columns
        gradient = contiguous(gradient)
        gradient_matrix = matrix(gradient, rows, features)
        x_gradient = weight_gradient = bias_gradient = None
        if needs_x:
            x_gradient = new_tensor(x.dtype, x.shape)
            multiply(gradient_matrix, factor.transposed, matrix(x_gradient, rows, columns))
        if needs_weight:
            weight_gradient = new_tensor(weight.dtype, weight.shape)
            out = _factor(weight_gradient, ctx.transposed)
            multiply(matrix(x, rows, columns).transposed, gradient_matrix, out)
            weight_gradient = in_dtype(weight_gradient, ctx.weight_dtype)
        if needs_bias:
            bias_gradient = in_dtype(sum_rows(gradient, rows, features, gradient.dtype), ctx.bias_dtype)
        return (x_gradient, weight_gradient) if ctx.bias_dtype is None else (x_gradient, weight_gradient, bias_gradient)


def linear(original, args, kwargs, rounds=False):
    """Kernel of ``linear(x, weight, bias)``; it takes float32 weights with a half x, rounded to its format, where it
    `rounds`."""
    values = bound(args, kwargs, ("x", "weight", "bias"), ())
    if not _fits(*values, rounds=rounds):
        return NotImplemented
    return Linear.apply(*values)


def _fits(x, weight, bias, *, rounds=False):
    """Return whether the tensors make a linear layer that oneDNN computes; for others Paddle words the error."""
    weights = (weight,) if bias is None else (weight, bias)
    if not (servable(x) and all(map(servable, weights)) if rounds else servable(x, *weights)):
        return False
    sizes, factor = x.shape, weight.shape
    if len(factor) != 2 or sizes[-1:] != factor[:1]:
        return False
    return bias is None or bias.shape == factor[1:]


def linear_gelu(original, args, kwargs):
    """Kernel of ``linear_gelu(layer, x)`` for a plain linear layer, without gradients."""
    layer, x = bound(args, kwargs, ("layer", "x"), ())
    if type(layer) is not paddle.nn.Linear or paddle_names.has_hooks(layer):
        return NotImplemented
    if x.dtype not in DATA_TYPES or any(parameter.dtype not in DATA_TYPES for parameter in layer.parameters()):
        return NotImplemented
    weight = in_dtype(layer.weight, x.dtype)
    bias = None if layer.bias is None else in_dtype(layer.bias, x.dtype)
    if not _fits(x, weight, bias):
        return NotImplemented
    return affine(contiguous(x), view(weight), bias, (("eltwise", onednn.GELU_ERF, 0.0, 0.0),))
