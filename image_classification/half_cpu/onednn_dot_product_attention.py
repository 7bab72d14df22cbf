"""Paddle's ``scaled_dot_product_attention`` as a whole, for models that nobody here wrote.

Shapes use: B batch, N queries, M keys, h heads, d channels of a head.
"""

from .onednn_matrices import View, view
from .onednn_memory import contiguous
from .onednn_primitives import Layout, bound, layout, new_tensor, servable
from .onednn_tiles import Tiles, attend, attend_backward, keeps
from .recorded import PyLayer
from .saved import keep, saved


def _by_heads(tensor):
    """Return the view [B, h, N, d] of a tensor [B, N, h, d] as it lies in memory."""
    data_type, shape, strides = layout(tensor)
    order = (0, 2, 1, 3)
    by_heads = Layout(data_type, *(tuple(one[axis] for axis in order) for one in (shape, strides)))
    return View(tensor.data_ptr(), by_heads, tensor)


def _readable(tensor):
    """Return the tensor, or a dense copy where the channels of a head do not lie side by side."""
    return tensor if tensor.strides[-1] == 1 and 0 not in tensor.strides else contiguous(tensor)


class DotProductAttention(PyLayer):
    """softmax(scale q k^T + mask) v. Kept for the backward pass: the operands and, of few tokens, the probabilities."""

    @staticmethod
    def forward(ctx, query, key, value, mask, scale, causal, keeps):
        """Return [B, N, h, d] for tensors like it and no mask or one of [W, h or 1, N or 1, M]."""
        ctx.needs = [not tensor.stop_gradient for tensor in (query, key, value)]
        ctx.needs_mask = mask is not None and not mask.stop_gradient
        mask = None if mask is None else contiguous(mask)
        query, key, value = map(_readable, (query, key, value))
        batch, queries, heads, _ = query.shape
        kept = new_tensor(query.dtype, [batch, heads, queries, key.shape[1]]) if keeps else None
        ctx.constants = (scale, causal)
        keep(ctx, query, key, value, mask, kept)
        out = new_tensor(query.dtype, [batch, queries, heads, value.shape[3]])
        attend(DotProductAttention._tiles(ctx, query, key, mask, kept), _by_heads(value), _by_heads(out))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of queries, keys and values, and of the mask if there is one."""
        query, key, value, mask, kept = saved(ctx)
        tiles = DotProductAttention._tiles(ctx, query, key, mask, kept)
        results = [new_tensor(tensor.dtype, tensor.shape) for tensor in (query, key, value)]
        gradient, of_mask = _by_heads(_readable(gradient)), mask if ctx.needs_mask else None
        of_mask = attend_backward(tiles, _by_heads(value), gradient, [_by_heads(one) for one in results], of_mask)
        gradients = (result if needed else None for result, needed in zip(results, ctx.needs, strict=True))
        return tuple(gradients) if mask is None else (*gradients, of_mask)

    @staticmethod
    def _tiles(ctx, query, key, mask, kept):
        mask, kept = (None if tensor is None else view(tensor) for tensor in (mask, kept))
        return Tiles(query.dtype, _by_heads(query), _by_heads(key), *ctx.constants, bias=mask, kept=kept)


def dot_product_attention(original, args, kwargs):
    """Kernel of Paddle's attention out of single operators, without dropout and for masks that oneDNN adds fast."""
    names = ("query", "key", "value", "mask", "dropout_rate", "causal", "return_softmax", "training", "scale")
    values = bound(args, kwargs, names, (None, 0.0, False, False, True, None))
    query, key, value, mask, dropout, causal, returns_weights, training, scale = values
    if returns_weights or dropout > 0.0 and training or not servable(query, key, value) or query.ndim != 4:
        return NotImplemented
    batch, queries, heads, dim = query.shape
    if key.shape[::2] != [batch, heads] or key.shape[3:] != [dim] or value.shape[:-1] != key.shape[:-1]:
        return NotImplemented
    keys = key.shape[1]
    if causal:
        if queries != keys:
            return NotImplemented
        mask = None  # so does Paddle
    if mask is not None:
        if not servable(query, mask) or mask.ndim > 4:
            return NotImplemented
        mask = mask if mask.ndim == 4 else mask.reshape([1] * (4 - mask.ndim) + mask.shape)
        full = [batch, heads, queries, keys]
        if any(size not in (1, whole) for size, whole in zip(mask.shape, full, strict=True)) or mask.shape[3] != keys:
            return NotImplemented
        if mask.shape[1] > 1 and mask.shape[2] < queries or not mask.stop_gradient and mask.shape[1:] != full[1:]:
            return NotImplemented
    scale = float(scale or dim**-0.5)
    return DotProductAttention.apply(query, key, value, mask, scale, bool(causal), keeps(queries, keys)), None
