"""The classifier around a chain of encoder blocks: patches, prefix tokens and positions before it, a head behind it.

Vision transformers that keep one grid of tokens are this model with blocks of their own. Parameter names are timm's.
Shapes use: B batch, N tokens (prefix tokens included), C = embed_dim.
"""

import functools
from collections.abc import Callable

import paddle
from paddle import nn

from image_classification.layers import TRUNC_NORMAL, ZERO, Dropout, PatchEmbed, drop_path_rates, linear
from image_classification.model import AttentionRollout, Block, Model, PositionEmbedding, layer_links
from image_classification.runtime import UserError

POOLS = ("token", "avg", "map")


class Encoder(Model):
    """A classifier whose head reads the class token ("token"), the mean of the patch tokens ("avg") or what a layer of
    the family makes of all tokens ("map").

    Tokens stand in the order class, registers, patches; the first two are prefix tokens.

    Args:
        make_block: called with the stochastic-depth rate of each block; gives a layer [B, N, C] -> [B, N, C], whose
            `attn` has `attention_weights`.
        position_embedding: whether learned positions are added; they are the patches' only with `no_embed_class`.
        pre_norm: a norm before the blocks, which makes the bias of the patches superfluous (CLIP).
        fc_norm: the last norm follows the pooling (as in MAE's fine-tuning) instead of preceding it.
        make_pool: gives the layer of "map", [B, N, C] -> [B, C].
    """

    head_names = ("head",)
    prefix = ("cls_token", "reg_token")  # in this order
    token_init = ZERO  # of the class token

    def __init__(self, make_block: Callable[[float], nn.Layer], depth: int, image_size: int, patch_size: int,
                 in_channels: int, num_classes: int, embed_dim: int, class_token: bool, reg_tokens: int,
                 no_embed_class: bool, global_pool: str, fc_norm: bool, norm_epsilon: float, dropout: float,
                 drop_path: float, position_embedding: bool = True, pre_norm: bool = False,
                 make_pool: Callable[[], nn.Layer] | None = None):
        super().__init__()
        pools = POOLS if make_pool else POOLS[:2]
        if global_pool not in pools:
            raise UserError(f"MODEL.GLOBAL_POOL {global_pool!r}: allowed are {', '.join(pools)}")
        if global_pool == "token" and not class_token:
            raise UserError("MODEL.GLOBAL_POOL 'token' needs MODEL.CLASS_TOKEN: True")
        self.num_classes = num_classes
        self.global_pool = global_pool
        self.num_prefix_tokens = int(class_token) + reg_tokens
        self.has_positions = position_embedding
        self.positions_of_prefix = 0 if no_embed_class else self.num_prefix_tokens

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim, bias=not pre_norm)
        if class_token:
            self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=self.token_init)
        if reg_tokens:
            registers = self.create_parameter([1, reg_tokens, embed_dim], default_initializer=TRUNC_NORMAL)
            self.add_parameter(self.prefix[1], registers)
        if position_embedding:
            positions = self.patch_embed.num_patches + self.positions_of_prefix
            self.pos_embed = self.create_parameter([1, positions, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_drop = Dropout(dropout)
        norm = functools.partial(nn.LayerNorm, embed_dim, epsilon=norm_epsilon)
        self.norm_pre = norm() if pre_norm else nn.Identity()
        self.blocks = nn.LayerList([make_block(rate) for rate in drop_path_rates(drop_path, depth)])
        self.norm = nn.Identity() if fc_norm else norm()
        if global_pool == "map":
            self.attn_pool = make_pool()
        self.fc_norm = norm() if fc_norm else nn.Identity()
        self.head = linear(embed_dim, num_classes)

    def embed(self, images):
        """Return tokens with positions, [B, N, C], for images [B, in_channels, H, W]."""
        x = self.patch_embed(images)
        if self.has_positions and not self.positions_of_prefix:
            x = x + self.pos_embed
        prefix = [token for name in self.prefix if (token := getattr(self, name, None)) is not None]
        if prefix:
            x = paddle.concat([*(token.expand([x.shape[0], -1, -1]) for token in prefix), x], axis=1)
        if self.has_positions and self.positions_of_prefix:
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

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        return [
            Block("embed", self.embed, ("patch_embed.", *self.prefix, "pos_embed", "norm_pre.")),
            *layer_links("blocks", self.blocks),
            Block("head", self.forward_head, ("norm.", "attn_pool.", "fc_norm.", *(f"{h}." for h in self.head_names))),
        ]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the one of the patches, where there is one."""
        if not self.has_positions:
            return {}
        return {"pos_embed": PositionEmbedding(self.patch_embed.grid, self.positions_of_prefix)}

    def explanation(self) -> AttentionRollout:
        """Return the attention of all blocks from what the head reads towards the patches."""
        layers = [block.attn for block in self.blocks]
        reads = 0 if self.global_pool == "token" else None
        return AttentionRollout(layers, self.patch_embed.grid, self.num_prefix_tokens, reads)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embeddings that weight decay must leave alone."""
        return {name for name, _ in self.named_parameters() if name in ("pos_embed", *self.prefix)}
