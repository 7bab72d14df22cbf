"""CaiT, class attention in image transformers (Touvron et al. 2021, https://arxiv.org/abs/2103.17239).

Patches attend to one another first, with heads that talk (Shazeer et al. 2020); a class token then reads them, in a few
blocks of its own. Factors on each branch start small (LayerScale).
Parameter names are timm's. Shapes use: B batch, N patches, C = embed_dim, h heads, d = C // h.
"""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.encoder import Encoder
from image_classification.layers import TRUNC_NORMAL, ZERO, Mlp
from image_classification.model import Block, GradCam
from image_classification.transformer import Attention, ClassAttention, ScaledBlock

from .dialects import DIALECTS


def between_heads(layer, scores):
    """Return the linear layer over the heads of `scores`, [B, h, N, N]."""
    mixed = paddle.matmul(layer.weight, scores.flatten(2), transpose_x=True)
    return (mixed + layer.bias.unsqueeze(-1).astype(mixed.dtype)).reshape(scores.shape)


class TalkingHeadAttention(Attention):
    """Self-attention over [B, N, C] whose scores and weights are mixed between the heads, at the start not at all."""

    def __init__(self, dim: int, num_heads: int, dropout: float, attention_dropout: float):
        super().__init__(dim, num_heads, True, attention_dropout, dropout)
        identity = nn.initializer.Assign(np.eye(num_heads, dtype="float32"))
        self.proj_l = nn.Linear(num_heads, num_heads, weight_attr=identity, bias_attr=ZERO)
        self.proj_w = nn.Linear(num_heads, num_heads, weight_attr=identity, bias_attr=ZERO)

    def mix(self, x):
        """Return the values that each token of `x`, [B, N, C], takes from all, [B, N, C]."""
        heads = self.packed(x).reshape([*x.shape[:2], 3 * self.num_heads, self.head_dim]).transpose([0, 2, 1, 3])
        query, key, value = paddle.split(heads, 3, axis=1)  # 3 x [B, h, N, d]
        scores = between_heads(self.proj_l, paddle.matmul(query * self.scale, key, transpose_y=True))
        weights = self.attn_drop(between_heads(self.proj_w, F.softmax(scores, axis=-1)))
        return paddle.matmul(weights, value).transpose([0, 2, 1, 3]).reshape(x.shape)

    def tensor_parallel_plan(self):
        """Heads talk to one another: nothing is shared."""
        return {}


class ClassBlock(ScaledBlock):
    """A block of the class token alone, ([B, 1, C], [B, N, C]) -> [B, 1, C]."""

    def forward(self, token, x):
        token = token + self.attn(self.norm1(paddle.concat([token, x.astype(token.dtype)], axis=1))) * self.gamma_1
        return token + self.mlp(self.norm2(token)) * self.gamma_2


class Cait(Encoder):
    """An encoder of the patches, see :class:`Encoder`, then `depth_token_only` blocks of the class token.

    The rate of stochastic depth is the same in each block.
    """

    dialects = DIALECTS
    token_init = TRUNC_NORMAL

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float, layer_scale: float, depth_token_only: int,
                 dropout: float, attention_dropout: float, drop_path: float, **options):
        hidden_dim = int(embed_dim * mlp_ratio)

        def make_block(_):
            attn = TalkingHeadAttention(embed_dim, num_heads, dropout, attention_dropout)
            return ScaledBlock(embed_dim, attn, Mlp(embed_dim, hidden_dim, dropout), drop_path, layer_scale)

        def make_class_block():
            attn = ClassAttention(embed_dim, num_heads)
            return ClassBlock(embed_dim, attn, Mlp(embed_dim, hidden_dim), 0.0, layer_scale)

        super().__init__(make_block, embed_dim=embed_dim, class_token=True, reg_tokens=0, no_embed_class=True,
                         global_pool="token", fc_norm=False, norm_epsilon=1e-6, dropout=dropout, drop_path=drop_path,
                         **options)  # fmt: skip
        self.blocks_token_only = nn.LayerList([make_class_block() for _ in range(depth_token_only)])

    def embed(self, images):
        """Return the patches with positions, [B, N, C], for images [B, in_channels, H, W]."""
        return self.pos_drop(self.patch_embed(images) + self.pos_embed)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's patches [B, N, C]."""
        token = self.cls_token.expand([x.shape[0], -1, -1])
        for block in self.blocks_token_only:
            token = block(token, x)
        return super().forward_head(paddle.concat([token, x.astype(token.dtype)], axis=1))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`; the last has the class token."""
        embed, *blocks, head = super().sequential_blocks()
        return [
            embed._replace(prefixes=("patch_embed.", "pos_embed")),
            *blocks,
            head._replace(prefixes=("cls_token", "blocks_token_only.", "norm.", "head.")),
        ]

    def layer_groups(self) -> list[tuple[str, ...]]:
        """Return the stem with the class token, each block, and the head."""
        blocks = [(f"blocks.{index}.",) for index in range(len(self.blocks))]
        of_class = [(f"blocks_token_only.{index}.",) for index in range(len(self.blocks_token_only))]
        return [("patch_embed.", "pos_embed", "cls_token"), *blocks, *of_class, ("norm.", "head.")]

    def explanation(self) -> GradCam:
        """Return the patches that the class token reads, [B, N, C]."""
        return GradCam(into="head", axes="BNC", grid=self.patch_embed.grid)


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 192,
    depth: int = 24,
    num_heads: int = 4,
    mlp_ratio: float = 4.0,
    layer_scale: float = 1e-5,
    depth_token_only: int = 2,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Cait:
    """Return a CaiT; the arguments are the MODEL section of a YAML file, and the defaults are CaiT-XXS24."""
    return Cait(**locals())
