"""Vision Transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929) and what became of it.

DeiT III (Touvron et al. 2022), CLIP's image towers (Radford et al. 2021), SigLIP's (Zhai et al. 2023; Tschannen et al.
2025), DINOv2 (Oquab et al. 2023) with registers (Darcet et al. 2023), I-JEPA (Assran et al. 2023) and timm's searched
baselines (SBB) are this model with other arguments.

Parameter names, LayerNorm epsilon (1e-6) and initialisation are timm's, so its weights load name by name; but
the patches' convolution starts as the linear layers do (normal 0.02, zero bias), timm's by PyTorch's default.
Shapes use: B batch, N tokens, C = embed_dim.
"""

import functools

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.encoder import Encoder
from image_classification.layers import TRUNC_NORMAL, Mlp, linear
from image_classification.transformer import TransformerBlock

from .dialects import DIALECTS


class AttentionPool(nn.Layer):
    """One learned query reads all tokens, [B, N, C] -> [B, C] (Zhai et al. 2022; SigLIP's head)."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, activation: str, epsilon: float):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.latent = self.create_parameter([1, 1, dim], default_initializer=TRUNC_NORMAL)
        self.q, self.kv, self.proj = linear(dim, dim), linear(dim, 2 * dim), linear(dim, dim)
        self.norm = nn.LayerNorm(dim, epsilon=epsilon)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation=activation)

    def forward(self, x):
        batch, tokens, dim = x.shape
        query = (self.q(self.latent) * self.head_dim**-0.5).reshape([1, 1, self.num_heads, -1]).transpose([0, 2, 1, 3])
        both = self.kv(x).reshape([batch, tokens, 2 * self.num_heads, -1]).transpose([0, 2, 1, 3])
        key, value = both.chunk(2, axis=1)  # [B, h, N, d] each
        weights = F.softmax(paddle.matmul(query, key, transpose_y=True), axis=-1)  # [B, h, 1, N]
        x = self.proj(paddle.matmul(weights, value).reshape([batch, dim]))
        return x + self.mlp(self.norm(x))


class VisionTransformer(Encoder):
    """ViT: an encoder of pre-norm blocks, see :class:`Encoder` and :class:`TransformerBlock` for the arguments."""

    dialects = DIALECTS

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float, qkv_bias: bool, layer_scale: float | None,
                 qk_norm: bool, swiglu: bool, activation: str, norm_epsilon: float, dropout: float,
                 attention_dropout: float, **options):
        def make_block(rate):
            return TransformerBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout, rate,
                                    layer_scale, qk_norm, swiglu, activation, norm_epsilon)  # fmt: skip

        pool = functools.partial(AttentionPool, embed_dim, num_heads, mlp_ratio, activation, norm_epsilon)
        super().__init__(make_block, embed_dim=embed_dim, norm_epsilon=norm_epsilon, dropout=dropout, make_pool=pool,
                         **options)  # fmt: skip


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_ratio: float = 4.0,
    qkv_bias: bool = True,
    class_token: bool = True,
    reg_tokens: int = 0,
    no_embed_class: bool = False,
    pre_norm: bool = False,
    layer_scale: float | None = None,
    qk_norm: bool = False,
    swiglu: bool = False,
    activation: str = "gelu",
    norm_epsilon: float = 1e-6,
    global_pool: str = "token",
    fc_norm: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> VisionTransformer:
    """Return a ViT; the arguments are the MODEL section of a YAML file, and the defaults are ViT-B/16."""
    return VisionTransformer(**locals())
