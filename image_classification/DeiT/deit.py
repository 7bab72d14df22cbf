"""DeiT, the data-efficient ViT, plain and distilled (Touvron et al. 2021, https://arxiv.org/abs/2012.12877).

The plain one is a ViT with another recipe. The distilled one has a second token and a second head, which learns from
the teacher where there is one (TRAIN.DISTILLATION_TYPE), else like the first; logits are the mean of both. Parameter
names, epsilon and initialisation are timm's.
Shapes use: B batch, N tokens (class and distillation token included), C = embed_dim.
"""

import paddle
from paddle import nn

from image_classification.layers import TRUNC_NORMAL, Dropout, PatchEmbed, drop_path_rates, linear
from image_classification.model import AttentionRollout, Block, Model, PositionEmbedding
from image_classification.transformer import TransformerBlock

from .dialects import DIALECTS


class Deit(Model):
    """DeiT; `distilled` adds `dist_token` and `head_dist`."""

    dialects = DIALECTS

    def __init__(self, image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 depth: int, num_heads: int, mlp_ratio: float, distilled: bool, dropout: float,
                 attention_dropout: float, drop_path: float):
        super().__init__()
        self.num_classes = num_classes
        self.distilled = distilled
        self.head_names = ("head", "head_dist") if distilled else ("head",)
        self.num_prefix_tokens = 2 if distilled else 1

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        tokens = self.patch_embed.num_patches + self.num_prefix_tokens
        self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=TRUNC_NORMAL)
        if distilled:
            self.dist_token = self.create_parameter([1, 1, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_embed = self.create_parameter([1, tokens, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_drop = Dropout(dropout)
        self.blocks = nn.LayerList([
            TransformerBlock(embed_dim, num_heads, mlp_ratio, True, dropout, attention_dropout, rate)
            for rate in drop_path_rates(drop_path, depth)
        ])
        self.norm = nn.LayerNorm(embed_dim, epsilon=1e-6)
        self.head = linear(embed_dim, num_classes)
        if distilled:
            self.head_dist = linear(embed_dim, num_classes)

    def embed(self, images):
        """Return tokens with positions, [B, N, C], for images [B, in_channels, H, W]."""
        x = self.patch_embed(images)
        tokens = [self.cls_token, self.dist_token] if self.distilled else [self.cls_token]
        x = paddle.concat([*(token.expand([x.shape[0], -1, -1]) for token in tokens), x], axis=1)
        return self.pos_drop(x + self.pos_embed)

    def forward_head(self, x):
        """Return class logits, [B, num_classes] or those of both heads, for the last block's tokens [B, N, C]."""
        x = self.norm(x)
        if not self.distilled:
            return self.head(x[:, 0])
        logits = self.head(x[:, 0]), self.head_dist(x[:, 1])
        if self.separate_heads and self.training:
            return paddle.stack(logits, axis=1)
        return (logits[0] + logits[1]) / 2

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
            Block("embed", self.embed, ("patch_embed.", "cls_token", "dist_token", "pos_embed")),
            *blocks,
            Block("head", self.forward_head, ("norm.", "head.", "head_dist.")),
        ]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the one of the patches."""
        return {"pos_embed": PositionEmbedding(self.patch_embed.grid, self.num_prefix_tokens)}

    def explanation(self) -> AttentionRollout:
        """Return the attention of all blocks from the class token towards the patches."""
        layers = [block.attn for block in self.blocks]
        return AttentionRollout(layers, self.patch_embed.grid, self.num_prefix_tokens, reads=0)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embeddings that weight decay must leave alone."""
        return {name for name, _ in self.named_parameters() if name in ("pos_embed", "cls_token", "dist_token")}


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_ratio: float = 4.0,
    distilled: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Deit:
    """Return a DeiT; the arguments are the MODEL section of a YAML file, and the defaults are DeiT-B/16."""
    return Deit(**locals())
