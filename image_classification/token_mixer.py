"""The classifier of the all-MLP networks: patches, blocks that mix tokens and channels, a norm, a head on the mean.

Parameter names are timm's. Shapes use: B batch, N tokens, C = embed_dim.
"""

from collections.abc import Callable

from paddle import nn

from image_classification.layers import PatchEmbed, drop_path_rates, linear
from image_classification.model import Block, GradCam, Model, layer_links


class TokenMixer(Model):
    """A classifier around blocks that are built for one number of tokens, and so for one image size.

    Args:
        make_block: called with the number of tokens and `drop_path`, the stochastic-depth rate of each block; gives a
            layer [B, N, C] -> [B, N, C].
        make_norm: called with C; gives the norm before the head.
    """

    head_names = ("head",)

    def __init__(self, make_block: Callable[..., nn.Layer], make_norm: Callable[[int], nn.Layer], depth: int,
                 image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 drop_path: float):
        super().__init__()
        self.num_classes = num_classes
        self.stem = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        rates = drop_path_rates(drop_path, depth)
        self.blocks = nn.LayerList([make_block(self.stem.num_patches, drop_path=rate) for rate in rates])
        self.norm = make_norm(embed_dim)
        self.head = linear(embed_dim, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's tokens [B, N, C]."""
        return self.head(self.norm(x).mean(axis=1))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        blocks = layer_links("blocks", self.blocks)
        return [Block("stem", self.stem, ("stem.",)), *blocks, Block("head", self.forward_head, ("norm.", "head."))]

    def explanation(self) -> GradCam:
        """Return the last block's tokens, [B, N, C]."""
        return GradCam(into="head", axes="BNC", grid=self.stem.grid)
