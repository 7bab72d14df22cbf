"""MLP-Mixer (Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601), with timm's parameter names and epsilon (1e-6).

Beside those of the paper stand timm's gMixer, whose MLPs are gated by SiLU.

Shapes use: B batch, N tokens, C = embed_dim.
"""

import functools

from paddle import nn

from image_classification.layers import DropPath, Mlp, product_norm, residual, residual_norm
from image_classification.token_mixer import TokenMixer
from image_classification.transformer import SwiGlu

from .dialects import DIALECTS

LayerNorm = functools.partial(nn.LayerNorm, epsilon=1e-6)


class MixerBlock(nn.Layer):
    """An MLP over the tokens of each channel, then one over the channels of each token, [B, N, C] -> [B, N, C]."""

    def __init__(self, num_tokens: int, dim: int, mlp_ratio: tuple[float, float], gated: bool, drop_path: float):
        super().__init__()
        mlp = functools.partial(SwiGlu, gate_last=True) if gated else Mlp
        tokens_dim, channels_dim = (int(dim * ratio) for ratio in mlp_ratio)
        self.norm1 = LayerNorm(dim)
        self.mlp_tokens = mlp(num_tokens, tokens_dim)
        self.norm2 = LayerNorm(dim)
        self.mlp_channels = mlp(dim, channels_dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        mixed = self.mlp_tokens(product_norm(x, self.norm1).transpose([0, 2, 1])).transpose([0, 2, 1])
        x, normed = residual_norm(x, mixed, self.norm2, drop_path=self.drop_path)
        return residual(x, self.mlp_channels(normed), drop_path=self.drop_path)


class MlpMixer(TokenMixer):
    """Patches, `depth` blocks and a head on the mean over the patches."""

    dialects = DIALECTS

    def __init__(self, embed_dim: int, mlp_ratio: tuple[float, float], gated: bool, **options):
        block = functools.partial(MixerBlock, dim=embed_dim, mlp_ratio=mlp_ratio, gated=gated)
        super().__init__(block, LayerNorm, embed_dim=embed_dim, **options)


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    mlp_ratio: tuple[float, float] = (0.5, 4.0),
    gated: bool = False,
    drop_path: float = 0.0,
) -> MlpMixer:
    """Return an MLP-Mixer; the arguments are the MODEL section of a YAML file, and the defaults are Mixer-B/16."""
    return MlpMixer(**locals())
