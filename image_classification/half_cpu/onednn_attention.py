"""Self-attention straight out of the packed projection [B, N, 3, h, d]: queries, keys and values are read by strides.

Nothing is transposed, split or concatenated, forward or backward. Shapes use: B batch, N tokens, h heads, d = C // h.
"""

from paddle.autograd import PyLayer

from . import onednn_library as onednn
from .onednn_matmul import View, multiply
from .onednn_normalization import softmax_rows, softmax_rows_backward
from .onednn_primitives import DATA_TYPES, Layout, bound, contiguous, dense, new_tensor, servable


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


class Attention(PyLayer):
    """softmax(scale q k^T) v. Kept for the backward pass: the packed projection and the probabilities."""

    @staticmethod
    def forward(ctx, packed, num_heads, scale):
        """Return [B, N, C] for the packed projection [B, N, 3C]."""
        packed = contiguous(packed)
        batch, tokens, width = packed.shape
        query, key, value = _parts(packed, num_heads, 3)
        weights = new_tensor(packed.dtype, [batch, num_heads, tokens, tokens])
        pointer = weights.data_ptr()
        square = View(pointer, dense(packed.dtype, batch, num_heads, tokens, tokens))
        rows = dense(packed.dtype, batch * num_heads * tokens, tokens)
        scaled = (("eltwise", onednn.LINEAR, scale, 0.0),)
        multiply(query, key.transposed, square, post_ops=scaled)
        softmax_rows(pointer, pointer, rows)
        out = new_tensor(packed.dtype, [batch, tokens, width // 3])
        multiply(square, value, _parts(out, num_heads, 1)[0])
        ctx.save_for_backward(packed, weights)
        ctx.constants = (num_heads, scaled, square.layout, rows)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the packed projection."""
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
        return result


def attention(original, args, kwargs):
    """Kernel of ``attention(qkv, num_heads, scale, dropout=None)`` without dropout."""
    values = bound(args, kwargs, ("qkv", "num_heads", "scale", "dropout"), (None,))
    if values is None or values[-1] is not None:
        return NotImplemented
    packed, num_heads, scale, _ = values
    if not servable(packed) or packed.ndim != 3 or packed.shape[-1] % (3 * num_heads):
        return NotImplemented
    return Attention.apply(packed, num_heads, float(scale))
