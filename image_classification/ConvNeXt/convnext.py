"""ConvNeXt (Liu et al. 2022, https://arxiv.org/abs/2201.03545), with timm's parameter names and epsilon (1e-6).

ConvNeXt V2 (Woo et al. 2023, https://arxiv.org/abs/2301.00808) is the same network with a normalisation of responses
inside every MLP, in place of the layer scale.

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import (
    TRUNC_NORMAL,
    ZERO,
    DropPath,
    LayerNorm2D,
    Mlp,
    linear,
    linear_gelu,
    normal_conv,
    residual,
    stage_rates,
)
from image_classification.model import StagedModel
from image_classification.runtime import UserError

from .dialects import DIALECTS

LAYER_SCALE = 1e-6  # start of every block's gamma, section 2.6 of the paper's appendix


class GlobalResponseNorm(nn.Layer):
    """GRN: each channel grows with the share of its norm over the map in the mean norm, [B, H, W, C] -> [B, H, W, C].

    Norms and shares are float32 in every format: the square of 256 is beyond float16.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.weight = self.create_parameter([dim], default_initializer=ZERO)
        self.bias = self.create_parameter([dim], default_initializer=ZERO)

    def forward(self, x):
        wide = x.astype("float32")
        squares = (wide * wide).sum(axis=[1, 2], keepdim=True)  # paddle.inference's `square` overwrites its input
        norms = (squares + 1e-30).sqrt()  # [B, 1, 1, C]; a root has no slope at the 0 of a dead channel
        share = norms / (norms.mean(axis=-1, keepdim=True) + 1e-6)
        return x * (1.0 + share * self.weight.astype("float32")).astype(x.dtype) + self.bias


class PointwiseConv(nn.Conv2D):
    """A 1x1 convolution over [B, H, W, C]: a linear layer whose weight is stored as [out, in, 1, 1]."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, 1, weight_attr=TRUNC_NORMAL, bias_attr=ZERO)

    def forward(self, x):
        return F.linear(x, self.weight.flatten(1).t(), self.bias)


class VariantMlp(Mlp):
    """An MLP with GRN of its hidden responses, of linear layers or 1x1 convolutions, [B, H, W, C] -> [B, H, W, C]."""

    def __init__(self, dim: int, hidden_dim: int, grn: bool, conv_mlp: bool):
        super().__init__(dim, hidden_dim)
        self.is_linear = not conv_mlp
        if conv_mlp:
            self.fc1, self.fc2 = PointwiseConv(dim, hidden_dim), PointwiseConv(hidden_dim, dim)
        self.grn = GlobalResponseNorm(hidden_dim) if grn else nn.Identity()

    def forward(self, x):
        x = linear_gelu(self.fc1, x) if self.is_linear else F.gelu(self.fc1(x))
        return self.fc2(self.grn(x))

    def tensor_parallel_plan(self):
        """Not shared: the mean norm is that of all hidden units."""
        return {}


class ConvNeXtBlock(nn.Layer):
    """Depthwise 7x7 convolution, LayerNorm, MLP, a shortcut, [B, C, H, W] -> [B, C, H, W]; layer scale or GRN."""

    def __init__(self, dim: int, drop_path: float, grn: bool, conv_mlp: bool):
        super().__init__()
        self.conv_dw = normal_conv(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp = VariantMlp(dim, 4 * dim, grn, conv_mlp) if grn or conv_mlp else Mlp(dim, 4 * dim)
        self.gamma = None
        if not grn:
            self.gamma = self.create_parameter([dim], default_initializer=nn.initializer.Constant(LAYER_SCALE))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        mixed = self.mlp(self.norm(self.conv_dw(x).transpose([0, 2, 3, 1])))  # channels last for the linear layers
        return residual(x.transpose([0, 2, 3, 1]), mixed, self.gamma, self.drop_path).transpose([0, 3, 1, 2])


class ConvNeXtStage(nn.Layer):
    """Halving of the image side (but not in the first stage), then blocks."""

    def __init__(self, in_channels: int, dim: int, rates: list[float], is_first: bool, **block_options):
        super().__init__()
        self.downsample = nn.Identity() if is_first else nn.Sequential(
            LayerNorm2D(in_channels, epsilon=1e-6), normal_conv(in_channels, dim, kernel_size=2, stride=2)
        )
        self.blocks = nn.Sequential(*(ConvNeXtBlock(dim, rate, **block_options) for rate in rates))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Layer):
    """Average pooling, LayerNorm and the classifier, [B, C, H, W] -> [B, num_classes]."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, epsilon=1e-6)
        self.fc = linear(dim, num_classes)

    def forward(self, x):
        return self.fc(self.norm(x.mean(axis=[2, 3])))


class ConvNeXt(StagedModel):
    """ConvNeXt of four stages; stage s has `depths[s]` blocks of `dims[s]` channels. The defaults are ConvNeXt-T.

    `grn` makes it a ConvNeXt V2; with `conv_mlp`, as in its small variants, the MLPs' weights are 1x1 convolutions'.
    """

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, depths: tuple[int, ...] = (3, 3, 9, 3), dims: tuple[int, ...] = (96, 192, 384, 768),
                 in_channels: int = 3, num_classes: int = 1000, drop_path: float = 0.0, grn: bool = False,
                 conv_mlp: bool = False):
        super().__init__()
        if len(depths) != len(dims):
            raise UserError(f"MODEL.DEPTHS {list(depths)} and MODEL.DIMS {list(dims)} must have the same length")
        self.num_classes = num_classes
        norm = LayerNorm2D(dims[0], epsilon=1e-6)
        self.stem = nn.Sequential(normal_conv(in_channels, dims[0], kernel_size=4, stride=4), norm)
        self.stages = nn.Sequential(*(
            ConvNeXtStage(dims[max(stage - 1, 0)], dims[stage], rates, stage == 0, grn=grn, conv_mlp=conv_mlp)
            for stage, rates in enumerate(stage_rates(drop_path, depths))
        ))
        self.head = Head(dims[-1], num_classes)


build_model = ConvNeXt  # its arguments are the MODEL section of a YAML file
