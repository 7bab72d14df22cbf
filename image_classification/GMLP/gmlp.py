"""gMLP (Liu et al. 2021, https://arxiv.org/abs/2105.08050), with timm's parameter names.

A block is one MLP over the channels, in the middle of which one half of them, mixed over the tokens, gates the other.

Shapes use: B batch, N tokens, C = embed_dim.
"""

import functools

from paddle import nn

from image_classification.layers import DropPath, linear, linear_gelu, product_norm, residual
from image_classification.runtime import UserError
from image_classification.token_mixer import TokenMixer

from .dialects import DIALECTS

LayerNorm = functools.partial(nn.LayerNorm, epsilon=1e-6)


class SpatialGate(nn.Layer):
    """One half of the channels times a projection of the other over the tokens, [B, N, 2C] -> [B, N, C].

    The gate begins at 1 for every value.
    """

    def __init__(self, num_tokens: int, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, epsilon=1e-5)
        self.proj = nn.Linear(num_tokens, num_tokens, weight_attr=nn.initializer.Normal(std=1e-6),
                              bias_attr=nn.initializer.Constant(1.0))  # fmt: skip

    def forward(self, x):
        value, gate = x.chunk(2, axis=-1)
        return value * self.proj(self.norm(gate).transpose([0, 2, 1])).transpose([0, 2, 1])


class GatedMlp(nn.Layer):
    """A linear layer to `hidden_dim` channels, GELU, the gate, and a linear layer back, [B, N, C] -> [B, N, C]."""

    def __init__(self, num_tokens: int, dim: int, hidden_dim: int):
        super().__init__()
        if hidden_dim < 2 or hidden_dim % 2:
            raise UserError(f"MODEL.MLP_RATIO: gives {hidden_dim} channels, which do not divide into two halves")
        self.fc1 = linear(dim, hidden_dim)
        self.gate = SpatialGate(num_tokens, hidden_dim // 2)
        self.fc2 = linear(hidden_dim // 2, dim)

    def forward(self, x):
        return self.fc2(self.gate(linear_gelu(self.fc1, x)))


class GatedBlock(nn.Layer):
    """A norm and a gated MLP beside the shortcut, [B, N, C] -> [B, N, C]."""

    def __init__(self, num_tokens: int, dim: int, mlp_ratio: float, drop_path: float):
        super().__init__()
        self.norm = LayerNorm(dim)
        self.mlp_channels = GatedMlp(num_tokens, dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        return residual(x, self.mlp_channels(product_norm(x, self.norm)), drop_path=self.drop_path)


class GMlp(TokenMixer):
    """Patches, `depth` blocks and a head on the mean over the patches."""

    dialects = DIALECTS

    def __init__(self, embed_dim: int, mlp_ratio: float, **options):
        block = functools.partial(GatedBlock, dim=embed_dim, mlp_ratio=mlp_ratio)
        super().__init__(block, LayerNorm, embed_dim=embed_dim, **options)


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 256,
    depth: int = 30,
    mlp_ratio: float = 6.0,
    drop_path: float = 0.0,
) -> GMlp:
    """Return a gMLP; the arguments are the MODEL section of a YAML file, and the defaults are gMLP-S."""
    return GMlp(**locals())
