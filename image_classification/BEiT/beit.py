"""BEiT (Bao et al. 2021, https://arxiv.org/abs/2106.08254) and BEiT v2 (Peng et al. 2022) as classifiers.

A ViT whose scores have a learnt bias for each head and each distance of two patches, in every block, instead of learnt
positions. Parameter names are timm's. Shapes use: B batch, N tokens (class token included), C = embed_dim, h heads.
"""

import numpy as np
import paddle

from image_classification.encoder import Encoder
from image_classification.layers import TRUNC_NORMAL, ZERO, Mlp
from image_classification.model import RelativePositions, Slice
from image_classification.transformer import (
    Attention,
    ScaledBlock,
    bias_of_pairs,
    relative_position_index,
    start_by_depth,
)

CLASS_PAIRS = 3  # the table's last rows: class token to patch, patch to class token, class token to itself


class RelativeAttention(Attention):
    """Self-attention over the class token and a grid of patches, [B, N, C] -> [B, N, C], with biases by distance."""

    def __init__(self, dim: int, num_heads: int, grid: int, dropout: float, attention_dropout: float):
        super().__init__(dim, num_heads, True, attention_dropout, dropout, key_bias=False)
        rows = (2 * grid - 1) ** 2
        self.relative_position_bias_table = self.create_parameter(
            [rows + CLASS_PAIRS, num_heads], default_initializer=ZERO
        )
        index = np.pad(relative_position_index(grid), [(1, 0), (1, 0)])
        index[0], index[:, 0] = rows, rows + 1
        index[0, 0] = rows + 2
        self.register_buffer("relative_position_index", paddle.to_tensor(index.reshape(-1)), persistable=False)

    def position_bias(self):
        """Return what is added to the scores of each pair of tokens, [1, h, N, N]."""
        return bias_of_pairs(self.relative_position_bias_table, self.relative_position_index)

    def tensor_parallel_plan(self):
        """Divided by heads, the biases among them; one sum after the projection."""
        return super().tensor_parallel_plan() | {"relative_position_bias_table": Slice(axis=1)}


class Beit(Encoder):
    """An encoder of blocks with relative positions, see :class:`Encoder`."""

    not_weights = (r".*\.relative_position_index",)
    token_init = TRUNC_NORMAL

    def __init__(self, image_size: int, patch_size: int, embed_dim: int, num_heads: int, mlp_ratio: float,
                 layer_scale: float | None, relative_position: bool, global_pool: str, dropout: float,
                 attention_dropout: float, **options):
        def make_block(rate):
            if relative_position:
                grid = image_size // patch_size
                attn = RelativeAttention(embed_dim, num_heads, grid, dropout, attention_dropout)
            else:
                attn = Attention(embed_dim, num_heads, True, attention_dropout, dropout, key_bias=False)
            return ScaledBlock(embed_dim, attn, Mlp(embed_dim, int(embed_dim * mlp_ratio), dropout), rate, layer_scale)

        super().__init__(make_block, image_size=image_size, patch_size=patch_size, embed_dim=embed_dim,
                         class_token=True, reg_tokens=0, no_embed_class=False, global_pool=global_pool,
                         fc_norm=global_pool == "avg", norm_epsilon=1e-6, dropout=dropout, **options)  # fmt: skip
        start_by_depth(self.blocks)
        self.relative_tables = [f"blocks.{index}.attn.relative_position_bias_table"
                                for index in range(len(self.blocks) if relative_position else 0)]  # fmt: skip

    def position_embeddings(self) -> dict:
        """Return the tables of distances, and learnt positions where there are some."""
        tables = dict.fromkeys(self.relative_tables, RelativePositions(self.patch_embed.grid, CLASS_PAIRS))
        return super().position_embeddings() | tables

    def no_weight_decay(self) -> set[str]:
        """Return the names of embeddings and tables of distances, which weight decay must leave alone."""
        return super().no_weight_decay() | {name for name, _ in self.named_parameters() if name in self.relative_tables}


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_ratio: float = 4.0,
    layer_scale: float | None = None,
    position_embedding: bool = False,
    relative_position: bool = True,
    global_pool: str = "avg",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Beit:
    """Return a BEiT; the arguments are the MODEL section of a YAML file, and the defaults are BEiT-B/16."""
    return Beit(**locals())
