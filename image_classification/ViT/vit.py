"""Vision Transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929).

Parameter names, LayerNorm epsilon (1e-6) and initialisation are timm's, so its weights load name by name.
Shapes use: B batch, N tokens (class token included), C = embed_dim.
"""

import paddle
from paddle import nn

from image_classification.layers import (
    TRUNC_NORMAL,
    ZERO,
    Dropout,
    PatchEmbed,
    TransformerBlock,
    drop_path_rates,
    linear,
)
from image_classification.model import AttentionRollout, Block, Model, PositionEmbedding
from image_classification.runtime import UserError

from .dialects import DIALECTS

POOLS = ("token", "avg")


class VisionTransformer(Model):
    """ViT whose head reads the class token ("token") or the mean over the patch tokens ("avg")."""

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 depth: int, num_heads: int, mlp_ratio: float, qkv_bias: bool, class_token: bool, global_pool: str,
                 fc_norm: bool, dropout: float, attention_dropout: float, drop_path: float):
        super().__init__()
        if global_pool not in POOLS:
            raise UserError(f"MODEL.GLOBAL_POOL {global_pool!r}: allowed are {', '.join(POOLS)}")
        if global_pool == "token" and not class_token:
            raise UserError("MODEL.GLOBAL_POOL 'token' needs MODEL.CLASS_TOKEN: True")
        self.num_classes = num_classes
        self.global_pool = global_pool
        self.num_prefix_tokens = int(class_token)

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        tokens = self.patch_embed.num_patches + self.num_prefix_tokens
        if class_token:
            self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=ZERO)
        self.pos_embed = self.create_parameter([1, tokens, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_drop = Dropout(dropout)
        self.blocks = nn.LayerList([
            TransformerBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout, rate)
            for rate in drop_path_rates(drop_path, depth)
        ])
        norm = nn.LayerNorm(embed_dim, epsilon=1e-6)
        self.norm = nn.Identity() if fc_norm else norm
        self.fc_norm = norm if fc_norm else nn.Identity()  # after the pooling, as in MAE's fine-tuning
        self.head = linear(embed_dim, num_classes)

    def embed(self, images):
        """Return tokens with positions, [B, N, C], for images [B, in_channels, H, W]."""
        x = self.patch_embed(images)
        if self.num_prefix_tokens:
            x = paddle.concat([self.cls_token.expand([x.shape[0], -1, -1]), x], axis=1)
        return self.pos_drop(x + self.pos_embed)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's tokens [B, N, C]."""
        x = self.norm(x)
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
            Block("embed", self.embed, ("patch_embed.", "cls_token", "pos_embed")),
            *blocks,
            Block("head", self.forward_head, ("norm.", "fc_norm.", "head.")),
        ]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the one of the patches."""
        return {"pos_embed": PositionEmbedding(self.patch_embed.grid, self.num_prefix_tokens)}

    def explanation(self) -> AttentionRollout:
        """Return the attention of all blocks from what the head reads towards the patches."""
        layers = [block.attn for block in self.blocks]
        reads = 0 if self.global_pool == "token" else None
        return AttentionRollout(layers, self.patch_embed.grid, self.num_prefix_tokens, reads)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embeddings that weight decay must leave alone."""
        return {name for name, _ in self.named_parameters() if name in ("pos_embed", "cls_token")}


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
    global_pool: str = "token",
    fc_norm: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> VisionTransformer:
    """Return a ViT; the arguments are the MODEL section of a YAML file, and the defaults are ViT-B/16."""
    return VisionTransformer(**locals())
