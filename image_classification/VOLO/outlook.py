"""Outlook attention of VOLO (Yuan et al. 2021), for windows of 3x3 places around each second one.

Shapes use: B batch, H and W the height and width of a grid of patches, C channels, h heads, d = C // h.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import Dropout, Mlp, linear, rearrange, residual, residual_norm
from image_classification.model import Column, Count, Draw, Row
from image_classification.runtime import UserError


def neighbours(x, axis: int):
    """Return each second place of an axis with those before and after it, [..., 2n, ...] -> [..., n, 3, ...].

    What lies before the first place is zero.
    """
    count = x.shape[axis] // 2
    pairs = x.reshape([*x.shape[:axis], count, 2, *x.shape[axis + 1 :]])
    even, odd = paddle.split(pairs, 2, axis=axis + 1)
    *most, last = paddle.split(odd, [count - 1, 1] if count > 1 else [1], axis=axis)
    return paddle.concat([paddle.concat([paddle.zeros_like(last), *most], axis=axis), even, odd], axis=axis + 1)


def summed(x, axis: int):
    """Return the sum of all that :func:`neighbours` took from each place, [..., n, 3, ...] -> [..., 2n, ...]."""
    count = x.shape[axis]
    before, even, odd = paddle.split(x, 3, axis=axis + 1)
    first, *rest = paddle.split(before, [1, count - 1] if count > 1 else [1], axis=axis)
    odd = odd + paddle.concat([*rest, paddle.zeros_like(first)], axis=axis)
    return paddle.concat([even, odd], axis=axis + 1).reshape([*x.shape[:axis], 2 * count, *x.shape[axis + 2 :]])


class OutlookAttention(nn.Layer):
    """Each second place mixes the values of its 3x3 neighbours and gives them back, [B, H, W, C] -> [B, H, W, C].

    Nothing asks: the 9 x 9 weights are a linear layer of the mean of 2 x 2 places.
    """

    def __init__(self, dim: int, num_heads: int, attention_dropout: float):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"MODEL.EMBED_DIMS: {dim} is not a multiple of its MODEL.NUM_HEADS {num_heads}")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.v = linear(dim, dim, bias=False)
        self.attn = linear(dim, 81 * num_heads)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)

    def forward(self, x):
        batch, height, width, _ = x.shape
        rows, columns, heads = height // 2, width // 2, self.num_heads
        means = F.avg_pool2d(x.transpose([0, 3, 1, 2]), 2).transpose([0, 2, 3, 1])
        scores = self.attn(means).reshape([-1, heads, 9, 9]) * self.scale  # [B * places, h, 9, 9]
        weights = self.attn_drop(F.softmax(scores, axis=-1))
        value = neighbours(neighbours(self.v(x), 1), 3)  # [B, H/2, 3, W/2, 3, h * d]
        head_dim = value.shape[-1] // heads
        split, parts = [batch, rows, 3, columns, 3, heads, head_dim], [batch * rows * columns, heads, 9, head_dim]
        mixed = paddle.matmul(weights, rearrange(value, split, [0, 1, 3, 5, 2, 4, 6], parts))
        split = [batch, rows, columns, heads, 3, 3, head_dim]
        mixed = rearrange(mixed, split, [0, 1, 4, 2, 5, 3, 6], value.shape)
        return self.proj(summed(summed(mixed, 3), 1))

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        heads = {"num_heads": Count("attention heads"), "v": Column(), "attn": Column()}
        return heads | {"attn_drop": Draw(), "proj": Row()}


class Outlooker(nn.Layer):
    """Outlook attention and an MLP, each with a shortcut, [B, H, W, C] -> [B, H, W, C]; no path is dropped."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, attention_dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-5)
        self.attn = OutlookAttention(dim, num_heads, attention_dropout)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-5)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x):
        x, normed = residual_norm(x, self.attn(self.norm1(x)), self.norm2)
        return residual(x, self.mlp(normed))
