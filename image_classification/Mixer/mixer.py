"""MLP-Mixer (Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601), with timm's parameter names and epsilon (1e-6).

Shapes use: B batch, N tokens, C = embed_dim.
"""

from paddle import nn

from image_classification.layers import DropPath, Mlp, PatchEmbed, drop_path_rates, linear
from image_classification.model import Block, GradCam, Model

from .dialects import DIALECTS


class MixerBlock(nn.Layer):
    """An MLP over the tokens of each channel, then one over the channels of each token, [B, N, C] -> [B, N, C]."""

    def __init__(self, num_tokens: int, dim: int, mlp_ratio: tuple[float, float], drop_path: float):
        super().__init__()
        tokens_dim, channels_dim = (int(dim * ratio) for ratio in mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp_tokens = Mlp(num_tokens, tokens_dim)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp_channels = Mlp(dim, channels_dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        mixed = self.mlp_tokens(self.norm1(x).transpose([0, 2, 1])).transpose([0, 2, 1])
        x = x + self.drop_path(mixed)
        return x + self.drop_path(self.mlp_channels(self.norm2(x)))


class MlpMixer(Model):
    """Patches, `depth` blocks and a head on the mean over the patches."""

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 depth: int, mlp_ratio: tuple[float, float], drop_path: float):
        super().__init__()
        self.num_classes = num_classes
        self.stem = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        self.blocks = nn.LayerList([
            MixerBlock(self.stem.num_patches, embed_dim, mlp_ratio, rate) for rate in drop_path_rates(drop_path, depth)
        ])
        self.norm = nn.LayerNorm(embed_dim, epsilon=1e-6)
        self.head = linear(embed_dim, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's tokens [B, N, C]."""
        return self.head(self.norm(x).mean(axis=1))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`."""
        blocks = [Block(f"blocks.{index}", block, (f"blocks.{index}.",)) for index, block in enumerate(self.blocks)]
        return [Block("stem", self.stem, ("stem.",)), *blocks, Block("head", self.forward_head, ("norm.", "head."))]

    def explanation(self) -> GradCam:
        """Return the last block's tokens, [B, N, C]."""
        return GradCam(into="head", axes="BNC", grid=self.stem.grid)


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    mlp_ratio: tuple[float, float] = (0.5, 4.0),
    drop_path: float = 0.0,
) -> MlpMixer:
    """Return an MLP-Mixer; the arguments are the MODEL section of a YAML file, and the defaults are Mixer-B/16."""
    return MlpMixer(**locals())
