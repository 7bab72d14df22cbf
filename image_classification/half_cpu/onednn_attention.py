"""Self-attention straight out of the packed projection [B, N, 3, h, d]: queries, keys and values are read by strides.

Nothing is transposed, split or concatenated, forward or backward.
Shapes use: B batch, W biases, N tokens, h heads, d = C // h.
"""

import math

from paddle.autograd import PyLayer

from . import onednn_library as onednn
from .onednn_matmul import View, multiply, sum_rows
from .onednn_memory import contiguous
from .onednn_normalization import softmax_rows, softmax_rows_backward
from .onednn_primitives import DATA_TYPES, Layout, bound, dense, new_tensor, servable


def _parts(packed, num_heads, count):
    """Return the views [B, h, N, d] of the `count` equal parts of a dense tensor [B, N, count * C]."""
    batch, tokens, width = packed.shape
    dim = width // count
    head_dim = dim // num_heads
    layout = Layout(
        DATA_TYPES[packed.dtype], (batch, num_heads, tokens, head_dim), (tokens * width, head_dim, width, 1)
    )
    pointer, step = packed.data_ptr(), dim * packed.element_size()
    return [View(pointer + index * step, layout) for index in range(count)]


def _write_scores(query, key, scores, scaled, bias):
    """Write scale q k^T, plus the bias [W, h, N, N] if there is one, to the view `scores`, [B, h, N, N]."""
    if bias is None:
        multiply(query, key.transposed, scores, post_ops=scaled)
        return
    # One bias for all samples is broadcast; for several, oneDNN would broadcast in its slow code only.
    count = bias.shape[0]
    samples = scores.layout.shape[0] if count == 1 else count
    post_ops = (*scaled, ("binary", onednn.BINARY_ADD, dense(bias.dtype, *bias.shape)))
    for first in range(0, scores.layout.shape[0], samples):
        operands = [view.samples(first, samples, bias.element_size()) for view in (query, key.transposed, scores)]
        multiply(*operands, post_ops=post_ops, operands=(bias.data_ptr(),))


class Attention(PyLayer):
    """softmax(scale q k^T + bias) v. Kept for the backward pass: the packed projection and the probabilities."""

    @staticmethod
    def forward(ctx, packed, bias, num_heads, scale):
        """Return [B, N, C] for the packed projection [B, N, 3C] and no bias or one of [W, h, N, N]."""
        ctx.needs = (not packed.stop_gradient, bias is not None and not bias.stop_gradient)
        ctx.bias_shape = None if bias is None else bias.shape
        packed, bias = contiguous(packed), None if bias is None else contiguous(bias)
        batch, tokens, width = packed.shape
        query, key, value = _parts(packed, num_heads, 3)
        weights = new_tensor(packed.dtype, [batch, num_heads, tokens, tokens])
        pointer = weights.data_ptr()
        square = View(pointer, dense(packed.dtype, batch, num_heads, tokens, tokens))
        rows = dense(packed.dtype, batch * num_heads * tokens, tokens)
        scaled = (("eltwise", onednn.LINEAR, scale, 0.0),)
        _write_scores(query, key, square, scaled, bias)
        softmax_rows(pointer, pointer, rows)
        out = new_tensor(packed.dtype, [batch, tokens, width // 3])
        multiply(square, value, _parts(out, num_heads, 1)[0])
        ctx.save_for_backward(packed, weights)
        ctx.constants = (num_heads, scaled, square.layout, rows)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of the packed projection and of the bias, if there is one."""
        packed, weights = ctx.saved_tensor()
        num_heads, scaled, square_layout, rows = ctx.constants
        query, key, value = _parts(packed, num_heads, 3)
        gradient = contiguous(gradient)
        (out_gradient,) = _parts(gradient, num_heads, 1)
        result = new_tensor(packed.dtype, packed.shape)
        query_gradient, key_gradient, value_gradient = _parts(result, num_heads, 3)
        scores_gradient = new_tensor(packed.dtype, weights.shape)
        probabilities = View(weights.data_ptr(), square_layout)
        scores = View(scores_gradient.data_ptr(), square_layout)
        multiply(probabilities.transposed, out_gradient, value_gradient)
        multiply(out_gradient, value.transposed, scores)
        softmax_rows_backward(probabilities.pointer, scores.pointer, scores.pointer, rows)
        multiply(scores, key, query_gradient, post_ops=scaled)
        multiply(scores.transposed, query, key_gradient, post_ops=scaled)
        if ctx.bias_shape is None:
            return result
        bias_gradient = None
        if ctx.needs[1]:
            columns = math.prod(ctx.bias_shape)
            bias_gradient = sum_rows(scores_gradient, math.prod(weights.shape) // columns, columns, packed.dtype)
            bias_gradient = bias_gradient.reshape(ctx.bias_shape)
        return result if ctx.needs[0] else None, bias_gradient


def attention(original, args, kwargs):
    """Kernel of ``attention(qkv, num_heads, scale, dropout=None, bias=None)`` without dropout."""
    values = bound(args, kwargs, ("qkv", "num_heads", "scale", "dropout", "bias"), (None, None))
    if values is None:
        return NotImplemented
    packed, num_heads, scale, dropout, bias = values
    if dropout is not None or not servable(packed) or packed.ndim != 3 or packed.shape[-1] % (3 * num_heads):
        return NotImplemented
    batch, tokens, _ = packed.shape
    if bias is not None:
        if not servable(packed, bias) or bias.ndim != 4 or bias.shape[1:] != [num_heads, tokens, tokens]:
            return NotImplemented
        if batch % bias.shape[0]:
            return NotImplemented
    return Attention.apply(packed, bias, num_heads, float(scale))
