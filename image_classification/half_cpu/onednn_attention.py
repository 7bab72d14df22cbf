"""Self-attention straight out of the packed projection [B, N, 3, h, d]: queries, keys and values are read by strides.

Nothing is transposed, split or concatenated, forward or backward.
Shapes use: B batch, W biases, N tokens, h heads, d = C // h.
"""

from .onednn_matrices import View, view
from .onednn_memory import contiguous
from .onednn_primitives import Layout, bound, data_type, new_tensor, servable
from .onednn_tiles import Tiles, attend, attend_backward, keeps
from .recorded import PyLayer
from .saved import keep, saved


def parts(packed, num_heads, count):
    """Return the views [B, h, N, d] of the `count` equal parts of a dense tensor [B, N, count * C]."""
    batch, tokens, width = packed.shape
    dim = width // count
    head_dim = dim // num_heads
    layout = Layout(
        data_type(packed), (batch, num_heads, tokens, head_dim), (tokens * width, head_dim, width, 1)
    )
    pointer, step = packed.data_ptr(), dim * packed.element_size()
    return [View(pointer + index * step, layout, packed) for index in range(count)]


class Attention(PyLayer):
    """softmax(scale q k^T + bias) v. Kept for the backward pass: the packed projection, the bias and, of few tokens,
    the probabilities."""

    @staticmethod
    def forward(ctx, packed, bias, num_heads, scale, keeps):
        """Return [B, N, C] for the packed projection [B, N, 3C] and no bias or one of [W, h, N, N]."""
        ctx.needs = (not packed.stop_gradient, bias is not None and not bias.stop_gradient)
        packed, bias = contiguous(packed), None if bias is None else contiguous(bias)
        batch, tokens, width = packed.shape
        kept = new_tensor(packed.dtype, [batch, num_heads, tokens, tokens]) if keeps else None
        ctx.constants = (num_heads, scale)
        tiles, value = Attention._tiles(ctx, packed, bias, kept)
        out = new_tensor(packed.dtype, [batch, tokens, width // 3])
        attend(tiles, value, parts(out, num_heads, 1)[0])
        keep(ctx, packed, bias, kept)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of the packed projection and of the bias, if there is one."""
        packed, bias, kept = saved(ctx)
        num_heads, _ = ctx.constants
        tiles, value = Attention._tiles(ctx, packed, bias, kept)
        gradient = contiguous(gradient)
        result = new_tensor(packed.dtype, packed.shape)
        (gradient,), results = parts(gradient, num_heads, 1), parts(result, num_heads, 3)
        bias_gradient = attend_backward(tiles, value, gradient, results, bias if ctx.needs[1] else None)
        if bias is None:
            return result
        return result if ctx.needs[0] else None, bias_gradient

    @staticmethod
    def _tiles(ctx, packed, bias, kept):
        num_heads, scale = ctx.constants
        query, key, value = parts(packed, num_heads, 3)
        bias, kept = (None if tensor is None else view(tensor) for tensor in (bias, kept))
        return Tiles(packed.dtype, query, key, scale, bias=bias, kept=kept), value


def attention(original, args, kwargs):
    """Kernel of ``attention(qkv, num_heads, scale, dropout=None, bias=None)`` without dropout."""
    values = bound(args, kwargs, ("qkv", "num_heads", "scale", "dropout", "bias"), (None, None))
    packed, num_heads, scale, dropout, bias = values
    if dropout is not None or not servable(packed) or packed.ndim != 3 or packed.shape[-1] % (3 * num_heads):
        return NotImplemented
    batch, tokens, _ = packed.shape
    if bias is not None:
        if not servable(packed, bias) or bias.ndim != 4 or bias.shape[1:] != [num_heads, tokens, tokens]:
            return NotImplemented
        if batch % bias.shape[0]:
            return NotImplemented
    return Attention.apply(packed, bias, num_heads, float(scale), keeps(tokens, tokens))
