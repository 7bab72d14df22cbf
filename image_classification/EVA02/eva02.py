"""EVA-02 (Fang et al. 2023, https://arxiv.org/abs/2303.11331) and other ViTs with rotary positions.

EVA (Fang et al. 2022), DINOv3 (Simeoni et al. 2025, https://arxiv.org/abs/2508.10104), RoPE-ViT (Heo et al. 2024) and
timm's searched baselines with rotary positions are this model with other arguments: a ViT whose queries and keys are
turned by angles that follow from the places of their patches (Su et al. 2021), whose MLP may be gated and normalised
inside ("sub-LN"), and whose keys have no bias. Parameter names are timm's.
Shapes use: B batch, N tokens (P prefix tokens included), C = embed_dim, h heads, d = C // h.
"""

import math

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.encoder import Encoder
from image_classification.half_cpu import composite
from image_classification.layers import TRUNC_NORMAL, Dropout, Mlp, linear
from image_classification.model import Column, Draw, Row
from image_classification.runtime import UserError
from image_classification.transformer import Attention, ScaledBlock, SwiGlu, start_by_depth

ROPES = ("none", "index", "centred")
BIASES = ("none", "qv", "qkv")
MLPS = ("gelu", "swiglu", "split_swiglu", "norm_swiglu")


def rotary_angles(grid: int, num_bands: int, rope: str, temperature: float, reference: int | None,
                  xy: bool) -> np.ndarray:
    """Return the angles, float64 [grid * grid, 2 * num_bands]: the bands of the row, then of the column ("xy": before).

    A place is "index", 0 .. grid - 1 stretched as if the grid had `reference` sides (None: as it is), or "centred",
    between -2 pi and 2 pi. Band b turns `temperature` ** (b / num_bands) times as slowly as the first.
    """
    if rope == "index":
        places = np.arange(grid) * ((reference or grid) / grid)
    else:
        places = 2 * math.pi * ((2 * np.arange(grid) + 1) / grid - 1)
    coords = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    bands = temperature ** (-np.arange(num_bands) / num_bands)
    return ((coords[:, ::-1] if xy else coords) * bands).reshape(grid**2, -1)


@composite("rotary")
def rotary(qkv, sine, cosine, num_heads: int, halves: bool):
    """Return the packed projection `qkv`, [B, N, 3C] = [B, N, 3h, d], with queries and keys turned, in float32.

    `sine` and `cosine` are [N, 1, d]; a pair of channels is one of each of the head's `halves`, or two neighbours.
    """
    head_dim = qkv.shape[-1] // (3 * num_heads)
    heads = qkv.reshape([*qkv.shape[:2], 3 * num_heads, head_dim])
    both, value = paddle.split(heads, [2 * num_heads, num_heads], axis=2)
    pairs = both.astype("float32")
    if halves:
        first, second = pairs.chunk(2, axis=-1)
        across = paddle.concat([-second, first], axis=-1)
    else:
        pairs_of = pairs.reshape([*pairs.shape[:3], head_dim // 2, 2])
        across = paddle.stack([-pairs_of[..., 1], pairs_of[..., 0]], axis=-1).reshape(pairs.shape)
    turned = (pairs * cosine.astype("float32") + across * sine.astype("float32")).astype(value.dtype)
    return paddle.concat([turned, value], axis=2).flatten(2)


class RotaryAttention(Attention):
    """Self-attention over [B, N, C] whose queries and keys are turned pair by pair of their channels.

    Args:
        tables: sine and cosine of the angles, float32 [N, 1, d] each; None turns nothing.
        halves: a pair is a channel of the head's first half and that of the second, instead of two neighbours.
        bias: "none", "qv" (keys have none) or "qkv".
        separate: query, key and value have layers of their own; their biases are "none" or "qv".
        inner_norm: epsilon of a norm before the projection (sub-LN); None for none.
    """

    def __init__(self, dim: int, num_heads: int, tables: tuple[np.ndarray, np.ndarray] | None, halves: bool, bias: str,
                 separate: bool, inner_norm: float | None, dropout: float, attention_dropout: float):
        packed_bias = bias != "none" and not separate
        super().__init__(dim, num_heads, packed_bias, attention_dropout, dropout, key_bias=bias == "qkv")
        self.separate = separate
        if separate:
            del self.qkv
            self.q_proj = linear(dim, dim, bias=bias == "qv")
            self.k_proj = linear(dim, dim, bias=False)
            self.v_proj = linear(dim, dim, bias=bias == "qv")
        self.halves = halves
        self.turns = tables is not None
        if self.turns:
            for name, table in zip(("sine", "cosine"), tables, strict=True):
                self.register_buffer(name, paddle.to_tensor(table), persistable=False)
        self.has_norm = inner_norm is not None
        if self.has_norm:
            self.norm = nn.LayerNorm(dim, epsilon=inner_norm)

    def project(self, x):
        """Return query, key and value of `x`, [B, N, C] -> [B, N, 3C]."""
        if self.separate:
            return paddle.concat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], axis=-1)
        return super().project(x)

    def packed(self, x):
        """Return query, key and value of `x`, [B, N, C], as `attention` takes them; turned in float32."""
        qkv = self.project(x)
        if not self.turns:
            return qkv
        return rotary(qkv, self.sine, self.cosine, self.num_heads, self.halves)

    def mix(self, x):
        """Return the values that each token of `x`, [B, N, C], takes from all, [B, N, C]."""
        return self.norm(super().mix(x)) if self.has_norm else super().mix(x)

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection. A norm over all heads needs them whole: nothing is shared."""
        if self.has_norm:
            return {}
        plan = super().tensor_parallel_plan()
        if self.separate:
            del plan["qkv"]
            plan |= {"q_proj": Column(), "k_proj": Column(), "v_proj": Column()}
        return plan


class SplitSwiGlu(nn.Layer):
    """SwiGLU with a layer each for gate and value; `norm` is the epsilon of a norm over its hidden units, or None."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float, norm: float | None):
        super().__init__()
        self.fc1_g = linear(dim, hidden_dim)
        self.fc1_x = linear(dim, hidden_dim)
        self.drop1 = Dropout(dropout)
        self.norm = nn.Identity() if norm is None else nn.LayerNorm(hidden_dim, epsilon=norm)
        self.fc2 = linear(hidden_dim, dim)
        self.drop2 = Dropout(dropout)

    def forward(self, x):
        return self.drop2(self.fc2(self.norm(self.drop1(F.silu(self.fc1_g(x)) * self.fc1_x(x)))))

    def tensor_parallel_plan(self):
        """Divided by hidden units; one sum after the last layer. A norm over all of them needs them whole."""
        if isinstance(self.norm, nn.LayerNorm):
            return {}
        return {"fc1_g": Column(), "fc1_x": Column(), "drop1": Draw(), "fc2": Row()}


class Eva02(Encoder):
    """An encoder of blocks with rotary attention, see :class:`Encoder`, :class:`RotaryAttention` and `build_model`."""

    token_init = TRUNC_NORMAL

    def __init__(self, image_size: int, patch_size: int, embed_dim: int, num_heads: int, mlp_ratio: float, mlp: str,
                 qkv_bias: str, separate_qkv: bool, attention_norm: bool, layer_scale: float | None, class_token: bool,
                 reg_tokens: int, rope: str, rope_temperature: float, rope_grid: int | None, rope_xy: bool,
                 norm_epsilon: float, dropout: float, attention_dropout: float, **options):
        for key, value, allowed in (("ROPE", rope, ROPES), ("QKV_BIAS", qkv_bias, BIASES), ("MLP", mlp, MLPS)):
            if value not in allowed:
                raise UserError(f"MODEL.{key} {value!r}: allowed are {', '.join(allowed)}")
        if separate_qkv and qkv_bias == "qkv":
            raise UserError("MODEL.QKV_BIAS 'qkv' needs MODEL.SEPARATE_QKV: False")
        tables = None
        if rope != "none":
            if num_heads < 1 or embed_dim % (4 * num_heads):
                raise UserError(f"MODEL.EMBED_DIM {embed_dim} is not a multiple of 4 * MODEL.NUM_HEADS {num_heads}, "
                                "which MODEL.ROPE needs")  # fmt: skip
            if not rope_temperature > 0:
                raise UserError(f"MODEL.ROPE_TEMPERATURE {rope_temperature}: expected more than 0")
            bands = embed_dim // num_heads // 4
            grid = max(image_size // max(patch_size, 1), 1)  # what does not divide, the patches refuse
            angles = rotary_angles(grid, bands, rope, rope_temperature, rope_grid, rope_xy)
            angles = np.tile(angles, 2) if rope == "centred" else angles.repeat(2, axis=1)
            angles = np.pad(angles, [(int(class_token) + reg_tokens, 0), (0, 0)])[:, None]  # a prefix has no place
            tables = np.sin(angles).astype("float32"), np.cos(angles).astype("float32")
        hidden_dim = int(embed_dim * mlp_ratio)

        def make_mlp():
            if mlp == "gelu":
                return Mlp(embed_dim, hidden_dim, dropout)
            if mlp == "swiglu":
                return SwiGlu(embed_dim, 2 * hidden_dim, dropout)
            return SplitSwiGlu(embed_dim, hidden_dim, dropout, norm_epsilon if mlp == "norm_swiglu" else None)

        def make_block(rate):
            attn = RotaryAttention(embed_dim, num_heads, tables, rope == "centred", qkv_bias, separate_qkv,
                                   norm_epsilon if attention_norm else None, dropout, attention_dropout)  # fmt: skip
            return ScaledBlock(embed_dim, attn, make_mlp(), rate, layer_scale, norm_epsilon)

        super().__init__(make_block, image_size=image_size, patch_size=patch_size, embed_dim=embed_dim,
                         class_token=class_token, reg_tokens=reg_tokens, norm_epsilon=norm_epsilon, dropout=dropout,
                         **options)  # fmt: skip
        start_by_depth(self.blocks)


def build_model(
    image_size: int = 224,
    patch_size: int = 14,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_ratio: float = 8 / 3,
    mlp: str = "norm_swiglu",
    qkv_bias: str = "qv",
    separate_qkv: bool = True,
    attention_norm: bool = False,
    layer_scale: float | None = None,
    class_token: bool = True,
    reg_tokens: int = 0,
    position_embedding: bool = True,
    no_embed_class: bool = False,
    rope: str = "index",
    rope_temperature: float = 10000.0,
    rope_grid: int | None = 16,
    rope_xy: bool = False,
    global_pool: str = "avg",
    fc_norm: bool = True,
    norm_epsilon: float = 1e-6,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Eva02:
    """Return an EVA-02; the arguments are the MODEL section of a YAML file, and the defaults are EVA-02-B/14.

    `mlp` is "gelu", "swiglu" (one packed layer before the gate), "split_swiglu" (two) or "norm_swiglu" (two, sub-LN);
    `rope` is "none", "index" or "centred", see :func:`rotary_angles`.
    """
    return Eva02(**locals())
