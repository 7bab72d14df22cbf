"""The blocks of RegNet: the bottleneck of X and Y, the linear one of Z, and V's, which normalises first.

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from paddle import nn

from image_classification.layers import ConvNorm, DropPath, SqueezeExcite, conv, conv_norm, norm_activation, residual


class Options(NamedTuple):
    """What all blocks of a network have in common."""

    bottle_ratio: float
    se_ratio: float
    activation: Callable
    pooled_shortcut: bool

    def squeeze_excite(self, in_channels: int, inner: int) -> nn.Layer:
        """Return the squeeze-excite of a block; its ratio is that of the block's input."""
        squeezed = round(in_channels * self.se_ratio)
        return SqueezeExcite(inner, squeezed, self.activation) if squeezed else nn.Identity()

    def shortcut(self, in_channels: int, channels: int, stride: int, layer: Callable) -> nn.Layer:
        """Return the identity, or where the shape changes a 1x1 `layer`, strided or after average pooling."""
        if stride == 1 and in_channels == channels:
            return nn.Identity()
        if not self.pooled_shortcut:
            return layer(in_channels, channels, 1, stride)
        return nn.Sequential(nn.AvgPool2D(2, stride, ceil_mode=True), layer(in_channels, channels, 1))


class Branch(nn.Layer):
    """1x1, grouped 3x3 with the stride, squeeze-excite, 1x1 without an activation, [B, C, H, W] -> [B, C', H', W']."""

    def __init__(self, in_channels: int, channels: int, stride: int, group_width: int, options: Options,
                 drop_path: float, norm_start: float):
        super().__init__()
        inner = round(channels * options.bottle_ratio)
        self.activation = options.activation
        self.conv1 = ConvNorm(in_channels, inner, 1, activation=self.activation)
        self.conv2 = ConvNorm(inner, inner, 3, stride, inner // group_width, self.activation)
        self.se = options.squeeze_excite(in_channels, inner)
        self.conv3 = ConvNorm(inner, channels, 1, activation=None, norm_start=norm_start)
        self.drop_path = DropPath(drop_path)

    def branch(self, x):
        return self.drop_path(self.conv3(self.se(self.conv2(self.conv1(x)))))


class Bottleneck(Branch):
    """The block of X and Y: an activation after the sum with the shortcut. The branch starts closed."""

    def __init__(self, in_channels: int, channels: int, stride: int, group_width: int, options: Options,
                 drop_path: float):
        super().__init__(in_channels, channels, stride, group_width, options, drop_path, norm_start=0.0)
        layer = functools.partial(ConvNorm, activation=None)
        self.downsample = options.shortcut(in_channels, channels, stride, layer)

    def forward(self, x):
        return self.activation(self.downsample(x) + self.branch(x))


class LinearBottleneck(Branch):
    """The block of Z: no activation after it, and a shortcut only where the shape stays."""

    def __init__(self, in_channels: int, channels: int, stride: int, group_width: int, options: Options,
                 drop_path: float):
        super().__init__(in_channels, channels, stride, group_width, options, drop_path, norm_start=1.0)
        self.has_shortcut = stride == 1 and in_channels == channels

    def forward(self, x):
        if not self.has_shortcut:
            return self.branch(x)
        return x + self.branch(x)


class PreBottleneck(nn.Layer):
    """The block of V: BatchNorm and activation before each convolution, the first of them before the shortcut too."""

    def __init__(self, in_channels: int, channels: int, stride: int, group_width: int, options: Options,
                 drop_path: float):
        super().__init__()
        inner = round(channels * options.bottle_ratio)
        self.activation = options.activation
        self.norm1, self.conv1 = nn.BatchNorm2D(in_channels), conv(in_channels, inner, 1)
        self.norm2, self.conv2 = nn.BatchNorm2D(inner), conv(inner, inner, 3, stride, inner // group_width)
        self.se = options.squeeze_excite(in_channels, inner)
        self.norm3, self.conv3 = nn.BatchNorm2D(inner), conv(inner, channels, 1)
        self.downsample = options.shortcut(in_channels, channels, stride, conv)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        shortcut = norm_activation(x, self.norm1, self.activation)
        x = self.conv2(conv_norm(shortcut, self.conv1, self.norm2, self.activation))
        x = self.conv3(norm_activation(self.se(x), self.norm3, self.activation))
        return residual(self.downsample(shortcut), x, drop_path=self.drop_path)


BLOCKS = {"bottleneck": Bottleneck, "linear": LinearBottleneck, "preact": PreBottleneck}
