"""The encoder block of vision transformers and its parts, with the options that came after ViT.

Shapes use: B batch, N tokens, C channels, h heads, d = C // h.
"""

import math
from collections.abc import Sequence

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import (
    TRUNC_NORMAL,
    ZERO,
    Dropout,
    DropPath,
    Mlp,
    attention,
    linear,
    product_norm,
    residual,
    residual_norm,
)
from image_classification.model import Column, Count, Dialect, Draw, Row, Slice, Whole
from image_classification.runtime import UserError

# PaddleViT's names of a model of these blocks, with one head or two.
PADDLEVIT = Dialect(
    "PaddleViT",
    r"encoder\.layers\.0\.attn_norm\.weight",
    (
        (r"position_embedding", "pos_embed"),
        (r"cls_token", "cls_token"),
        (r"patch_embedding\.patch_embedding\.(.*)", r"patch_embed.proj.\1"),
        (r"patch_embedding\.position_embeddings", "pos_embed"),
        (r"patch_embedding\.cls_token", "cls_token"),
        (r"encoder\.layers\.(\d+)\.attn_norm\.(.*)", r"blocks.\1.norm1.\2"),
        (r"encoder\.layers\.(\d+)\.mlp_norm\.(.*)", r"blocks.\1.norm2.\2"),
        (r"encoder\.layers\.(\d+)\.attn\.out\.(.*)", r"blocks.\1.attn.proj.\2"),
        (r"encoder\.layers\.(\d+)\.(.*)", r"blocks.\1.\2"),
        (r"encoder\.(?:encoder_)?norm\.(.*)", r"norm.\1"),
        (r"classifier\.(.*)", r"head.\1"),
        (r"classifier_dist\.(.*)", r"head_dist.\1"),
    ),
)


def relative_position_index(window: int) -> np.ndarray:
    """Return, int64 [n, n], the row of a table of (2 window - 1)^2 biases for each pair of n = window^2 tokens."""
    coords = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
    relative = coords[:, :, None] - coords[:, None, :] + window - 1  # [2, n, n], each 0 .. 2w - 2
    return relative[0] * (2 * window - 1) + relative[1]


def bias_of_pairs(table, index):
    """Return the bias of each pair of n tokens, [1, h, n, n]: rows of `table`, [rows, h], by `index`, [n * n]."""
    tokens = math.isqrt(index.shape[0])
    return paddle.index_select(table, index).reshape([1, tokens, tokens, -1]).transpose([0, 3, 1, 2])


class Attention(nn.Layer):
    """Multi-head self-attention over [B, N, C], with query, key and value in one packed projection.

    `qk_norm` is the epsilon of a LayerNorm over each head's query and key (Dehghani et al. 2023, ViT-22B), which bounds
    the scores; None for none. Without `key_bias` query and value alone have biases, as parameters of their own (BEiT).
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True, attention_dropout: float = 0.0,
                 dropout: float = 0.0, qk_norm: float | None = None, key_bias: bool = True):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"MODEL.NUM_HEADS {num_heads} does not divide the width of the tokens, {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = linear(dim, 3 * dim, bias=qkv_bias and key_bias)
        self.has_own_biases = qkv_bias and not key_bias
        if self.has_own_biases:
            self.q_bias = self.create_parameter([dim], default_initializer=ZERO)
            self.v_bias = self.create_parameter([dim], default_initializer=ZERO)
        self.has_qk_norm = qk_norm is not None
        if self.has_qk_norm:
            self.q_norm = nn.LayerNorm(self.head_dim, epsilon=qk_norm)
            self.k_norm = nn.LayerNorm(self.head_dim, epsilon=qk_norm)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)
        self.proj_drop = Dropout(dropout)

    def project(self, x):
        """Return query, key and value of `x`, [B, N, C] -> [B, N, 3C]."""
        qkv = self.qkv(x)
        if not self.has_own_biases:
            return qkv
        return qkv + paddle.concat([self.q_bias, paddle.zeros_like(self.q_bias), self.v_bias]).astype(qkv.dtype)

    def packed(self, x):
        """Return query, key and value of `x`, [B, N, C], as `attention` takes them."""
        qkv = self.project(x)
        if not self.has_qk_norm:
            return qkv
        query, key, value = paddle.split(qkv.reshape([*x.shape[:2], -1, self.head_dim]), 3, axis=2)
        return paddle.concat([self.q_norm(query), self.k_norm(key), value.astype(key.dtype)], axis=2).flatten(2)

    def position_bias(self):
        """Return what is added to the scores of each pair of tokens, [1, h, N, N], None for nothing."""
        return None

    def mix(self, x):
        """Return the values that each token of `x`, [B, N, C], takes from all, [B, N, C]."""
        dropout = self.attn_drop if self.training and self.attn_drop.p else None
        return attention(self.packed(x), self.num_heads, self.scale, dropout, self.position_bias())

    def forward(self, x):
        return self.proj_drop(self.proj(self.mix(x)))

    def attention_weights(self, x):
        """Return how much each token of `x`, [B, N, C], takes from each, [B, h, N, N]."""
        batch, tokens, _ = x.shape
        query, key, _ = self.packed(x).reshape([batch, tokens, 3, self.num_heads, self.head_dim]).unbind(2)
        scores = paddle.einsum("bnhd,bmhd->bhnm", query * self.scale, key)
        bias = self.position_bias()
        return F.softmax(scores if bias is None else scores + bias, axis=-1)

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        norms = {"q_norm": Whole(), "k_norm": Whole()} if self.has_qk_norm else {}
        biases = {"q_bias": Slice(axis=0), "v_bias": Slice(axis=0)} if self.has_own_biases else {}
        heads = {"num_heads": Count("attention heads"), "qkv": Column(blocks=3)}
        return heads | biases | norms | {"attn_drop": Draw(), "proj": Row()}


class ClassAttention(nn.Layer):
    """What the first of N + 1 tokens takes from all, [B, N + 1, C] -> [B, 1, C] (Touvron et al. 2021, CaiT).

    `names` are those of the layers of query, key and value.
    """

    def __init__(self, dim: int, num_heads: int, names: Sequence[str] = "qkv"):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"MODEL.NUM_HEADS {num_heads} does not divide the width of the tokens, {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.names = names
        for name in names:
            setattr(self, name, linear(dim, dim))
        self.proj = linear(dim, dim)

    def heads(self, x):
        """Return [B, tokens, C] as [B, h, tokens, d]."""
        return x.reshape([*x.shape[:2], self.num_heads, self.head_dim]).transpose([0, 2, 1, 3])

    def project(self, x):
        """Return the query of the first token, [B, 1, C], key and value of all, [B, N + 1, C]."""
        query, key, value = (getattr(self, name) for name in self.names)
        return query(x[:, :1]), key(x), value(x)

    def forward(self, x):
        query, key, value = map(self.heads, self.project(x))
        scores = paddle.matmul(query * self.head_dim**-0.5, key, transpose_y=True)  # [B, h, 1, N + 1]
        taken = paddle.matmul(F.softmax(scores, axis=-1), value)
        return self.proj(taken.transpose([0, 2, 1, 3]).flatten(2))

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        return {"num_heads": Count("attention heads"), **dict.fromkeys(self.names, Column()), "proj": Row()}


class SwiGlu(nn.Layer):
    """Gated MLP (Shazeer 2020): `fc1` gives gate and value, half of `hidden_dim` each; SiLU(gate) weights the value.

    With `gate_last` it gives the value first, and the gate's biases start at 1, as in timm's gMixer: at 0 nearly
    nothing passes, and what does is quadratic in small weights.
    """

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0, gate_last: bool = False):
        super().__init__()
        self.gate_last = gate_last
        open_gate = nn.initializer.Assign((np.arange(hidden_dim) >= hidden_dim // 2).astype("float32"))
        self.fc1 = nn.Linear(dim, hidden_dim, TRUNC_NORMAL, open_gate) if gate_last else linear(dim, hidden_dim)
        self.drop1 = Dropout(dropout)
        self.fc2 = linear(hidden_dim // 2, dim)
        self.drop2 = Dropout(dropout)

    def forward(self, x):
        first, second = self.fc1(x).chunk(2, axis=-1)
        gate, value = (second, first) if self.gate_last else (first, second)
        return self.drop2(self.fc2(self.drop1(F.silu(gate) * value)))

    def tensor_parallel_plan(self):
        """Divided by hidden units; one sum after the second layer."""
        return {"fc1": Column(blocks=2), "drop1": Draw(), "fc2": Row()}


class LayerScale(nn.Layer):
    """A learned factor for each channel of a residual branch (Touvron et al. 2021, CaiT), which `residual` applies."""

    def __init__(self, dim: int, value: float):
        super().__init__()
        self.gamma = self.create_parameter([dim], default_initializer=nn.initializer.Constant(value))


class PreNormBlock(nn.Layer):
    """Attention and an MLP, each behind a norm and beside a shortcut, [B, ..., C] -> [B, ..., C].

    `layer_scale` is the start of the factors on both branches; None for none.
    """

    def __init__(self, dim: int, attn: nn.Layer, mlp: nn.Layer, layer_scale: float | None, epsilon: float,
                 drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=epsilon)
        self.attn = attn
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, epsilon=epsilon)
        self.mlp = mlp
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        scales = [getattr(layer, "gamma", None) for layer in (self.ls1, self.ls2)]
        mixed = self.attn(product_norm(x, self.norm1))
        x, normed = residual_norm(x, mixed, self.norm2, scales[0], self.drop_path)
        return residual(x, self.mlp(normed), scales[1], self.drop_path)


class TransformerBlock(PreNormBlock):
    """Transformer encoder block, [B, N, C] -> [B, N, C].

    Args:
        qk_norm: whether attention normalises queries and keys.
        gated: a SwiGLU in place of the MLP.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float = 4.0, qkv_bias: bool = True, dropout: float = 0.0,
                 attention_dropout: float = 0.0, drop_path: float = 0.0, layer_scale: float | None = None,
                 qk_norm: bool = False, gated: bool = False, activation: str = "gelu", epsilon: float = 1e-6):
        attn = Attention(dim, num_heads, qkv_bias, attention_dropout, dropout, epsilon if qk_norm else None)
        hidden_dim = int(dim * mlp_ratio)
        mlp = SwiGlu(dim, hidden_dim, dropout) if gated else Mlp(dim, hidden_dim, dropout, activation)
        super().__init__(dim, attn, mlp, layer_scale, epsilon, drop_path)


def start_by_depth(blocks: nn.LayerList) -> None:
    """Let the last weights of both branches of block n, counted from 1, start 1 / sqrt(2 n) times as large (BEiT)."""
    for number, block in enumerate(blocks, start=1):
        start = nn.initializer.TruncatedNormal(std=0.02 / math.sqrt(2 * number))
        for layer in (block.attn.proj, block.mlp.fc2):
            layer.weight = layer.create_parameter(layer.weight.shape, default_initializer=start)


class ScaledBlock(nn.Layer):
    """Pre-norm encoder block of given layers, [B, N, C] -> [B, N, C]; its factors are its own parameters (BEiT).

    Args:
        layer_scale: start of the factors on both branches; None for none.
    """

    def __init__(self, dim: int, attn: nn.Layer, mlp: nn.Layer, drop_path: float, layer_scale: float | None,
                 epsilon: float = 1e-6):
        super().__init__()
        self.has_scale = layer_scale is not None
        if self.has_scale:
            start = nn.initializer.Constant(layer_scale)
            self.gamma_1 = self.create_parameter([dim], default_initializer=start)
            self.gamma_2 = self.create_parameter([dim], default_initializer=start)
        self.norm1 = nn.LayerNorm(dim, epsilon=epsilon)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, epsilon=epsilon)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        scales = (self.gamma_1, self.gamma_2) if self.has_scale else (None, None)
        mixed = self.attn(product_norm(x, self.norm1))
        x, normed = residual_norm(x, mixed, self.norm2, scales[0], self.drop_path)
        return residual(x, self.mlp(normed), scales[1], self.drop_path)
