"""Attention within windows, of Swin (Liu et al. 2021) and of Swin V2 (Liu et al. 2022).

Shapes use: C channels, w window side, n = w * w tokens of a window, G windows of a batch, h heads, d = C // h.
"""

import math

import numpy as np
import paddle
from paddle import nn

from image_classification.layers import TRUNC_NORMAL, ZERO, Dropout, attention, linear
from image_classification.model import Column, Count, Draw, Row, Slice
from image_classification.runtime import UserError
from image_classification.transformer import bias_of_pairs, relative_position_index

MASKED = -100.0  # added to the score of a pair of tokens from different regions, as in the original
LARGEST_LOGIT_SCALE = math.log(100.0)
POSITION_UNITS = 512  # hidden units of the network of the position biases


def shifted_window_mask(size: int, window: int, shift: int) -> np.ndarray:
    """Return, float32 [windows, 1, n, n], MASKED for pairs of tokens that came together by the cyclic shift only."""
    region = np.zeros(size, np.int64)
    region[size - window : size - shift] = 1
    region[size - shift :] = 2
    regions = region[:, None] * 3 + region[None, :]
    count = size // window
    regions = regions.reshape(count, window, count, window).transpose(0, 2, 1, 3).reshape(count**2, window**2)
    return np.where(regions[:, None, :] != regions[:, :, None], MASKED, 0.0).astype("float32")[:, None]


def logarithmic_coords(window: int, pretrained_window: int) -> np.ndarray:
    """Return, float32 [(2w - 1)^2, 2], the distances of two tokens, +-8 at the edge of the pretrained window, as
    sign(x) log2(1 + |x|) / 3."""
    steps = 8.0 * np.arange(1 - window, window) / max(pretrained_window - 1, 1)
    steps = np.sign(steps) * np.log2(1.0 + np.abs(steps)) / 3.0
    return np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2).astype("float32")


class WindowAttention(nn.Layer):
    """Self-attention within windows, [G, n, C] -> [G, n, C], with a learnt bias per head and relative position."""

    def __init__(self, dim: int, num_heads: int, window: int, attention_dropout: float, dropout: float):
        super().__init__()
        if dim % num_heads:
            raise UserError(f"Swin: a stage's width {dim} is not a multiple of its MODEL.NUM_HEADS {num_heads}")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.window = window
        self.relative_position_bias_table = self.create_parameter(
            [(2 * window - 1) ** 2, num_heads], default_initializer=TRUNC_NORMAL
        )
        index = paddle.to_tensor(relative_position_index(window).reshape(-1))
        self.register_buffer("relative_position_index", index, persistable=False)
        self.qkv = linear(dim, 3 * dim)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)
        self.proj_drop = Dropout(dropout)

    def forward(self, x, mask=None):
        bias = self.position_bias()
        if mask is not None:  # [windows, 1, n, n]; the windows of one image are neighbours in G
            bias = bias + mask
        dropout = self.attn_drop if self.training and self.attn_drop.p else None
        return self.proj_drop(self.proj(attention(self.packed(x), self.num_heads, self.scale, dropout, bias)))

    def packed(self, x):
        """Return query, key and value of `x`, [G, n, C], as `attention` takes them."""
        return self.qkv(x)

    def position_bias(self):
        """Return the bias of each pair of tokens, [1, h, n, n]."""
        return bias_of_pairs(self.relative_position_bias_table, self.relative_position_index)

    def tensor_parallel_plan(self):
        """Divided by heads, the biases among them; one sum after the projection."""
        return {
            "num_heads": Count("attention heads"),
            "relative_position_bias_table": Slice(axis=1),
            "qkv": Column(blocks=3),
            "attn_drop": Draw(),
            "proj": Row(),
        }


class CosineWindowAttention(WindowAttention):
    """Swin V2's: scores are cosines with a learnt factor per head; a small network gives the position biases.

    The network sees distances on a logarithmic scale, in units of `pretrained_window`, the window that its weights were
    trained with. Lengths, factors and biases are float32 in every format.
    """

    def __init__(self, dim: int, num_heads: int, window: int, attention_dropout: float, dropout: float,
                 pretrained_window: int):
        super().__init__(dim, num_heads, window, attention_dropout, dropout)
        self.scale = 1.0  # the query has its own
        self.head_dim = dim // num_heads
        del self.relative_position_bias_table
        self.qkv = linear(dim, 3 * dim, bias=False)
        self.q_bias = self.create_parameter([dim], default_initializer=ZERO)
        self.v_bias = self.create_parameter([dim], default_initializer=ZERO)
        self.logit_scale = self.create_parameter(
            [num_heads, 1, 1], default_initializer=nn.initializer.Constant(math.log(10.0))
        )
        self.cpb_mlp = nn.Sequential(
            linear(2, POSITION_UNITS), nn.ReLU(), linear(POSITION_UNITS, num_heads, bias=False)
        )
        coords = paddle.to_tensor(logarithmic_coords(window, pretrained_window or window))
        self.register_buffer("relative_coords_table", coords, persistable=False)

    def packed(self, x):
        """Return q, k, v as `attention` takes them: queries of their head's length, keys of length 1."""
        query, key, value = self.qkv(x).chunk(3, axis=-1)
        both = paddle.concat([query + self.q_bias, key.astype(query.dtype)], axis=-1)
        heads = both.reshape([*both.shape[:2], 2 * self.num_heads, self.head_dim]).astype("float32")
        scale = self.logit_scale.astype("float32").clip(max=LARGEST_LOGIT_SCALE).exp().flatten(1)  # [h, 1]
        scale = paddle.concat([scale, paddle.ones(scale.shape, "float32")])
        heads = heads * (scale * ((heads * heads).sum(axis=-1, keepdim=True) + 1e-24).rsqrt())
        return paddle.concat([heads.reshape(both.shape).astype(key.dtype), (value + self.v_bias).astype(key.dtype)], -1)

    def position_bias(self):
        """Return the bias of each pair of tokens, [1, h, n, n], between 0 and 16."""
        dtype = self.cpb_mlp[0].weight.dtype
        table = self.cpb_mlp(self.relative_coords_table.astype(dtype))
        table = (16.0 * nn.functional.sigmoid(table.astype("float32"))).astype(dtype)
        return bias_of_pairs(table, self.relative_position_index)

    def tensor_parallel_plan(self):
        """Divided by heads, what gives their biases among them; one sum after the projection."""
        return {
            "num_heads": Count("attention heads"),
            "logit_scale": Slice(axis=0),
            "cpb_mlp.2": Column(),
            "qkv": Column(blocks=3),
            "q_bias": Slice(axis=0),
            "v_bias": Slice(axis=0),
            "attn_drop": Draw(),
            "proj": Row(),
        }
