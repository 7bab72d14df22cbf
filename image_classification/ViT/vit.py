"""Vision Transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929) and what became of it.

DeiT III (Touvron et al. 2022), CLIP's image towers (Radford et al. 2021), SigLIP's (Zhai et al. 2023), DINOv2 (Oquab et
al. 2023) with registers (Darcet et al. 2023) and timm's searched baselines (SBB) are this model with other arguments.

Parameter names, LayerNorm epsilon (1e-6) and initialisation are timm's, so its weights load name by name.
Shapes use: B batch, N tokens (class token included), C = embed_dim.
"""

import functools

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import (
    TRUNC_NORMAL,
    ZERO,
    Dropout,
    Mlp,
    PatchEmbed,
    drop_path_rates,
    linear,
)
from image_classification.model import AttentionRollout, Block, Model, PositionEmbedding
from image_classification.runtime import UserError
from image_classification.transformer import TransformerBlock

from .dialects import DIALECTS

POOLS = ("token", "avg", "map")
PREFIX = ("cls_token", "reg_token")  # in this order


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


class VisionTransformer(Model):
    """ViT whose head reads the class token ("token"), the mean of the patch tokens ("avg") or a query's pool ("map").

    Tokens stand in the order class, registers, patches; the first two are prefix tokens.
    """

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 depth: int, num_heads: int, mlp_ratio: float, qkv_bias: bool, class_token: bool, reg_tokens: int,
                 no_embed_class: bool, pre_norm: bool, layer_scale: float | None, qk_norm: bool, swiglu: bool,
                 activation: str, norm_epsilon: float, global_pool: str, fc_norm: bool, dropout: float,
                 attention_dropout: float, drop_path: float):
        super().__init__()
        if global_pool not in POOLS:
            raise UserError(f"MODEL.GLOBAL_POOL {global_pool!r}: allowed are {', '.join(POOLS)}")
        if global_pool == "token" and not class_token:
            raise UserError("MODEL.GLOBAL_POOL 'token' needs MODEL.CLASS_TOKEN: True")
        self.num_classes = num_classes
        self.global_pool = global_pool
        self.num_prefix_tokens = int(class_token) + reg_tokens
        self.positions_of_prefix = 0 if no_embed_class else self.num_prefix_tokens

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim, bias=not pre_norm)
        if class_token:
            self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=ZERO)
        if reg_tokens:
            self.reg_token = self.create_parameter([1, reg_tokens, embed_dim], default_initializer=TRUNC_NORMAL)
        positions = self.patch_embed.num_patches + self.positions_of_prefix
        self.pos_embed = self.create_parameter([1, positions, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_drop = Dropout(dropout)
        norm = functools.partial(nn.LayerNorm, embed_dim, epsilon=norm_epsilon)
        self.norm_pre = norm() if pre_norm else nn.Identity()  # CLIP's
        self.blocks = nn.LayerList([
            TransformerBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout, rate, layer_scale,
                             qk_norm, swiglu, activation, norm_epsilon)
            for rate in drop_path_rates(drop_path, depth)
        ])  # fmt: skip
        self.norm = nn.Identity() if fc_norm else norm()
        if global_pool == "map":
            self.attn_pool = AttentionPool(embed_dim, num_heads, mlp_ratio, activation, norm_epsilon)
        self.fc_norm = norm() if fc_norm else nn.Identity()  # after the pooling, as in MAE's fine-tuning
        self.head = linear(embed_dim, num_classes)

    def embed(self, images):
        """Return tokens with positions, [B, N, C], for images [B, in_channels, H, W]."""
        x = self.patch_embed(images)
        if not self.positions_of_prefix:
            x = x + self.pos_embed
        prefix = [token for name in PREFIX if (token := getattr(self, name, None)) is not None]
        if prefix:
            x = paddle.concat([*(token.expand([x.shape[0], -1, -1]) for token in prefix), x], axis=1)
        if self.positions_of_prefix:
            x = x + self.pos_embed
        return self.norm_pre(self.pos_drop(x))

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's tokens [B, N, C]."""
        x = self.norm(x)
        if self.global_pool == "map":
            x = self.attn_pool(x)
        else:
            x = x[:, 0] if self.global_pool == "token" else x[:, self.num_prefix_tokens :].mean(axis=1)
        return self.head(self.fc_norm(x))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`."""
        blocks = [Block(f"blocks.{i}", block, (f"blocks.{i}.",)) for i, block in enumerate(self.blocks)]
        return [
            Block("embed", self.embed, ("patch_embed.", *PREFIX, "pos_embed", "norm_pre.")),
            *blocks,
            Block("head", self.forward_head, ("norm.", "attn_pool.", "fc_norm.", "head.")),
        ]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the one of the patches."""
        return {"pos_embed": PositionEmbedding(self.patch_embed.grid, self.positions_of_prefix)}

    def explanation(self) -> AttentionRollout:
        """Return the attention of all blocks from what the head reads towards the patches."""
        layers = [block.attn for block in self.blocks]
        reads = 0 if self.global_pool == "token" else None
        return AttentionRollout(layers, self.patch_embed.grid, self.num_prefix_tokens, reads)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embeddings that weight decay must leave alone."""
        return {name for name, _ in self.named_parameters() if name in ("pos_embed", *PREFIX)}


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
