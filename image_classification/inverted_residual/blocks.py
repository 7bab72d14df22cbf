"""The blocks: squeeze-excite, one convolution, depthwise separable, inverted residual and its fused form.

Shapes use: B batch, C channels, H and W the height and width of the feature map. A block's options are its keyword-only
arguments; those that come before are the same for all.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import ZERO, ConvNorm, DropPath, conv, conv_norm, residual

ACTIVATIONS = {
    "relu": F.relu,
    "hardswish": F.hardswish,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate=True),
}
GATES = {"sigmoid": F.sigmoid, "hardsigmoid": functools.partial(F.hardsigmoid, slope=1 / 6)}


class Style(NamedTuple):
    """What all blocks of a network have in common.

    Attributes:
        activation: a name of ACTIVATIONS.
        norm_epsilon: of every BatchNorm.
        same_padding: TensorFlow's padding, which puts the odd pixel of a strided convolution to the right and below.
        gate: of squeeze-excite, a name of GATES.
        squeeze_activation: between its two convolutions; None for the block's.
        squeeze_expanded: its ratio is that of the widened channels, not of the block's input.
        squeeze_divisor: its channels are rounded to multiples of this number.
        layer_scale: start of the factor of the residual branch in blocks that can have one; None for no factor.
    """

    activation: str = "silu"
    norm_epsilon: float = 1e-5
    same_padding: bool = False
    gate: str = "sigmoid"
    squeeze_activation: str | None = None
    squeeze_expanded: bool = False
    squeeze_divisor: int = 1
    layer_scale: float | None = None

    def conv(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1,
             bias: bool = False) -> nn.Conv2D:
        """Return a convolution that keeps the image size at stride 1, normal over its fan-out as in TensorFlow's."""
        padding = "SAME" if self.same_padding and stride > 1 else None
        return conv(in_channels, out_channels, kernel_size, stride, groups, bias, padding)

    def conv_norm(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1,
                  activated: bool = True) -> ConvNorm:
        """Return such a convolution with its BatchNorm and, unless told otherwise, the activation."""
        padding = "SAME" if self.same_padding and stride > 1 else None
        activation = self.act if activated else None
        return ConvNorm(in_channels, out_channels, kernel_size, stride, groups, activation,
                        epsilon=self.norm_epsilon, padding=padding)  # fmt: skip

    def norm(self, channels: int) -> nn.BatchNorm2D:
        """Return a BatchNorm; Paddle's momentum 0.9 is what PyTorch calls 0.1."""
        return nn.BatchNorm2D(channels, momentum=0.9, epsilon=self.norm_epsilon)

    @property
    def act(self) -> Callable:
        """The activation."""
        return ACTIVATIONS[self.activation]


def round_channels(channels: float, divisor: int = 8) -> int:
    """Return the nearest multiple of `divisor`, but the next above where that is less than nine tenths."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def classifier(in_features: int, num_classes: int) -> nn.Linear:
    """Return the linear layer of the logits, uniform over its fan-out as in TensorFlow's networks."""
    limit = num_classes**-0.5
    return nn.Linear(in_features, num_classes, nn.initializer.Uniform(-limit, limit), ZERO)


class SqueezeExcite(nn.Layer):
    """A factor in (0, 1) for each channel, from the means of all (Hu et al. 2018), [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels: int, ratio: float, style: Style):
        super().__init__()
        divisor = style.squeeze_divisor
        squeezed = round(channels * ratio) if divisor == 1 else round_channels(channels * ratio, divisor)
        self.conv_reduce = style.conv(channels, squeezed, 1, bias=True)
        self.conv_expand = style.conv(squeezed, channels, 1, bias=True)
        self.activation = ACTIVATIONS[style.squeeze_activation or style.activation]
        self.gate = GATES[style.gate]

    def forward(self, x):
        squeezed = self.activation(self.conv_reduce(x.mean(axis=[2, 3], keepdim=True)))
        return x * self.gate(self.conv_expand(squeezed))


def squeeze_excite(channels: int, ratio: float, expansion: float, style: Style) -> nn.Layer:
    """Return the squeeze-excite of a block that widened `expansion` times to `channels`; ratio 0 is none."""
    if not ratio:
        return nn.Identity()
    return SqueezeExcite(channels, ratio if style.squeeze_expanded else ratio / expansion, style)


class Residual(nn.Layer):
    """Base of the blocks, [B, C, H, W] -> [B, C', H', W']: a `branch` and, where the shape stays, a shortcut."""

    def __init__(self, has_shortcut: bool, drop_path: float):
        super().__init__()
        self.has_shortcut = has_shortcut
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        if not self.has_shortcut:
            return self.branch(x)
        return residual(x, self.branch(x), drop_path=self.drop_path)


class ConvBlock(Residual):
    """One convolution; a shortcut only where it is asked for."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, skip: bool = False):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        self.act = style.act
        self.conv = style.conv(in_channels, out_channels, kernel_size, stride)
        self.bn1 = style.norm(out_channels)

    def branch(self, x):
        return conv_norm(x, self.conv, self.bn1, self.act)


class DepthwiseSeparable(Residual):
    """A convolution of each channel by itself, then a 1x1 convolution: an inverted residual that does not widen."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, squeeze_ratio: float = 0.0, skip: bool = True):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        self.act = style.act
        self.conv_dw = style.conv(in_channels, in_channels, kernel_size, stride, groups=in_channels)
        self.bn1 = style.norm(in_channels)
        self.se = squeeze_excite(in_channels, squeeze_ratio, 1.0, style)
        self.conv_pw = style.conv(in_channels, out_channels, 1)
        self.bn2 = style.norm(out_channels)
        self.last_act = None

    def branch(self, x):
        x = self.se(conv_norm(x, self.conv_dw, self.bn1, self.act))
        return conv_norm(x, self.conv_pw, self.bn2, self.last_act)


class ActivatedSeparable(DepthwiseSeparable):
    """A depthwise separable convolution with an activation after it and no shortcut (Howard et al. 2017)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, squeeze_ratio: float = 0.0):
        super().__init__(in_channels, out_channels, stride, style, drop_path, kernel_size=kernel_size,
                         squeeze_ratio=squeeze_ratio, skip=False)  # fmt: skip
        self.last_act = style.act


class InvertedResidual(Residual):
    """1x1 convolution to `expansion` times the channels, one of each channel by itself, squeeze-excite, 1x1 back."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, expansion: float, squeeze_ratio: float = 0.0, skip: bool = True):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        wide = round_channels(in_channels * expansion)
        self.act = style.act
        self.conv_pw = style.conv(in_channels, wide, 1)
        self.bn1 = style.norm(wide)
        self.conv_dw = style.conv(wide, wide, kernel_size, stride, groups=wide)
        self.bn2 = style.norm(wide)
        self.se = squeeze_excite(wide, squeeze_ratio, expansion, style)
        self.conv_pwl = style.conv(wide, out_channels, 1)
        self.bn3 = style.norm(out_channels)

    def branch(self, x):
        x = conv_norm(x, self.conv_pw, self.bn1, self.act)
        x = self.se(conv_norm(x, self.conv_dw, self.bn2, self.act))
        return conv_norm(x, self.conv_pwl, self.bn3)


class FusedInvertedResidual(Residual):
    """The first two convolutions of an inverted residual as a full one (Gupta & Tan 2019, "Fused-MBConv")."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, expansion: float, squeeze_ratio: float = 0.0, skip: bool = True):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        wide = round_channels(in_channels * expansion)
        self.act = style.act
        self.conv_exp = style.conv(in_channels, wide, kernel_size, stride)
        self.bn1 = style.norm(wide)
        self.se = squeeze_excite(wide, squeeze_ratio, expansion, style)
        self.conv_pwl = style.conv(wide, out_channels, 1)
        self.bn2 = style.norm(out_channels)

    def branch(self, x):
        x = self.se(conv_norm(x, self.conv_exp, self.bn1, self.act))
        return conv_norm(x, self.conv_pwl, self.bn2)


BLOCKS = {
    "cn": ConvBlock,
    "ds": DepthwiseSeparable,
    "dsa": ActivatedSeparable,
    "ir": InvertedResidual,
    "er": FusedInvertedResidual,
}
