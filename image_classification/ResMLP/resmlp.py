"""ResMLP (Touvron et al. 2021, https://arxiv.org/abs/2105.03404), with timm's parameter names.

No statistics: a scale and shift stand where others normalise, and the tokens are mixed by one linear layer.

Shapes use: B batch, N tokens, C = embed_dim.
"""

from paddle import nn

from image_classification.layers import ZERO, DropPath, Mlp, linear, residual, scale_shift
from image_classification.token_mixer import TokenMixer

from .dialects import DIALECTS


class Affine(nn.Layer):
    """A learned scale and shift of each channel."""

    def __init__(self, dim: int):
        super().__init__()
        self.alpha = self.create_parameter([1, 1, dim], default_initializer=nn.initializer.Constant(1.0))
        self.beta = self.create_parameter([1, 1, dim], default_initializer=ZERO)

    def forward(self, x):
        return scale_shift(x, self.alpha, self.beta)


class ResBlock(nn.Layer):
    """A linear layer over the tokens of each channel, then an MLP over the channels, [B, N, C] -> [B, N, C].

    Both branches begin at `layer_scale` times their size.
    """

    def __init__(self, num_tokens: int, dim: int, mlp_ratio: float, layer_scale: float, drop_path: float):
        super().__init__()
        start = nn.initializer.Constant(layer_scale)
        self.norm1 = Affine(dim)
        self.linear_tokens = linear(num_tokens, num_tokens)
        self.ls1 = self.create_parameter([dim], default_initializer=start)
        self.norm2 = Affine(dim)
        self.mlp_channels = Mlp(dim, int(dim * mlp_ratio))
        self.ls2 = self.create_parameter([dim], default_initializer=start)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        mixed = self.linear_tokens(self.norm1(x).transpose([0, 2, 1])).transpose([0, 2, 1])
        x = residual(x, mixed, self.ls1, self.drop_path)
        return residual(x, self.mlp_channels(self.norm2(x)), self.ls2, self.drop_path)


class ResMlp(TokenMixer):
    """Patches, `depth` blocks and a head on the mean over the patches.

    The rate of stochastic depth is the same in each block, as in the authors' code.
    """

    dialects = DIALECTS

    def __init__(self, embed_dim: int, mlp_ratio: float, layer_scale: float, drop_path: float, **options):
        def make_block(num_tokens, **_):
            return ResBlock(num_tokens, embed_dim, mlp_ratio, layer_scale, drop_path)

        super().__init__(make_block, Affine, embed_dim=embed_dim, drop_path=drop_path, **options)

    def no_weight_decay(self) -> set[str]:
        """Return the scales and shifts, which are vectors in all but their shape."""
        return {name for name, _ in self.named_parameters() if name.endswith((".alpha", ".beta"))}


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 384,
    depth: int = 12,
    mlp_ratio: float = 4.0,
    layer_scale: float = 0.1,
    drop_path: float = 0.0,
) -> ResMlp:
    """Return a ResMLP; the arguments are the MODEL section of a YAML file, and the defaults are ResMLP-12."""
    return ResMlp(**locals())
