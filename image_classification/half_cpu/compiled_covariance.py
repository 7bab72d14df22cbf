"""Attention between the channels of a packed projection [B, N, 3, h, d], by their cosines over all tokens.

Lengths are float32; queries, keys, scores and probabilities are rounded to the format of the projection, once each.
Nothing is transposed or split. Shapes use: B batch, N tokens, C channels, h heads, d = C // h.
"""

from .compiled_library import load, numbers
from .onednn_attention import parts
from .onednn_matmul import multiply
from .onednn_matrices import view
from .onednn_memory import contiguous, in_dtype, in_float32
from .onednn_normalization import softmax_rows, softmax_rows_backward
from .onednn_primitives import DATA_TYPES, bound, data_type, dense, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved


class CrossCovariance(PyLayer):
    """softmax(temperature * cosine(q, k)) v over the channels. Kept for the backward pass: the packed projection, its
    queries and keys of length one, one over their lengths, the probabilities."""

    @staticmethod
    def forward(ctx, packed, num_heads, temperature):
        """Return [B, N, C] for the packed projection [B, N, 3C] and a temperature of each head."""
        ctx.needs = not packed.stop_gradient, not temperature.stop_gradient
        ctx.temperature = temperature.shape, temperature.dtype
        packed, temperature = contiguous(packed), in_float32(temperature)
        batch, tokens, width = packed.shape
        dim = width // 3
        ctx.constants = data_type(packed), numbers(batch, tokens, 2 * dim, width, dim // num_heads, num_heads)
        unit = new_tensor(packed.dtype, [batch, tokens, 2 * dim])
        factors = new_tensor(temperature.dtype, [batch, 2 * dim])
        load().unit(*ctx.constants, *pointers(packed, temperature, unit, factors))
        query, key = parts(unit, num_heads, 2)
        weights = new_tensor(packed.dtype, [batch, num_heads, dim // num_heads, dim // num_heads])
        multiply(query.transposed, key, view(weights))
        softmax_rows(weights.data_ptr(), weights.data_ptr(), _rows(weights))
        out = new_tensor(packed.dtype, [batch, tokens, dim])
        multiply(parts(packed, num_heads, 3)[2], view(weights).transposed, parts(out, num_heads, 1)[0])
        keep(ctx, packed, temperature, unit, factors, weights)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of the packed projection and of the temperature."""
        packed, temperature, unit, factors, weights = saved(ctx)
        num_heads = weights.shape[1]
        (slope,), value = parts(contiguous(gradient), num_heads, 1), parts(packed, num_heads, 3)[2]
        result = new_tensor(packed.dtype, packed.shape)
        multiply(slope, view(weights), parts(result, num_heads, 3)[2])
        scores = new_tensor(weights.dtype, weights.shape)
        multiply(slope.transposed, value, view(scores))
        softmax_rows_backward(weights.data_ptr(), scores.data_ptr(), scores.data_ptr(), _rows(weights))
        (query, key), unit_gradient = parts(unit, num_heads, 2), new_tensor(unit.dtype, unit.shape)
        query_gradient, key_gradient = parts(unit_gradient, num_heads, 2)
        multiply(key, view(scores).transposed, query_gradient)
        multiply(query, view(scores), key_gradient)
        sums = new_tensor(temperature.dtype, temperature.shape)
        load().unit_backward(*ctx.constants, *pointers(packed, temperature, factors, unit_gradient, result, sums))
        shape, dtype = ctx.temperature
        gradients = result, in_dtype(sums.reshape(shape), dtype)
        return tuple(one if needed else None for one, needed in zip(gradients, ctx.needs, strict=True))


def _rows(weights):
    dim = weights.shape[-1]
    return dense(weights.dtype, numel(weights) // dim, dim)


def cross_covariance(original, args, kwargs):
    """Kernel of ``cross_covariance(qkv, num_heads, temperature, dropout=None)`` without dropout."""
    values = bound(args, kwargs, ("qkv", "num_heads", "temperature", "dropout"), (None,))
    packed, num_heads, temperature, dropout = values
    if dropout is not None or not servable(packed) or packed.ndim != 3 or packed.shape[-1] % (3 * num_heads):
        return NotImplemented
    if temperature.dtype not in DATA_TYPES or numel(temperature) != num_heads:
        return NotImplemented
    return CrossCovariance.apply(packed, num_heads, temperature)


KERNELS = {"cross_covariance": cross_covariance}
