"""ResNet (He et al. 2016, https://arxiv.org/abs/1512.03385), v1.5: a bottleneck strides in its 3x3 convolution.

Parameter names and initialisation are torchvision's, so its weights load name by name.
ResNeXt (Xie et al. 2017) and Wide ResNet (Zagoruyko & Komodakis 2016) differ in `groups` and `width_per_group` only.
ResNet-C has three 3x3 convolutions as its stem, and ResNet-D (He et al. 2019, https://arxiv.org/abs/1812.01187; "vd" in
PaddleClas) halves its shortcuts by average pooling, too: these have timm's names.
"""

import itertools
from typing import NamedTuple

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import ConvSequence, conv_norm
from image_classification.model import Block, FeatureMapModel, layer_links
from image_classification.runtime import UserError

from .dialects import DIALECTS


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Conv2D:
    """Return a convolution without bias that keeps the image size at stride 1, Kaiming-normal over its fan-out."""
    fan_out = out_channels * kernel_size**2
    return nn.Conv2D(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        groups=groups,
        weight_attr=nn.initializer.Normal(std=(2.0 / fan_out) ** 0.5),
        bias_attr=False,
    )


def batch_norm(channels: int) -> nn.BatchNorm2D:
    """Return a BatchNorm; Paddle's momentum 0.9 is what PyTorch calls 0.1."""
    return nn.BatchNorm2D(channels, momentum=0.9, epsilon=1e-5)


class Options(NamedTuple):
    """What all blocks of a network have in common."""

    groups: int
    width_per_group: int
    pooled_shortcut: bool

    def shortcut(self, in_channels: int, out_channels: int, stride: int, convolve: bool) -> nn.Layer:
        """Return the identity, or where the shape changes, or if told to `convolve`, a 1x1 convolution.

        This strides, or comes after average pooling.
        """
        if stride == 1 and in_channels == out_channels and not convolve:
            return nn.Identity()
        if not self.pooled_shortcut:
            return ConvSequence(conv(in_channels, out_channels, 1, stride), batch_norm(out_channels))
        pool = nn.AvgPool2D(2, 2, ceil_mode=True) if stride > 1 else nn.Identity()
        return ConvSequence(pool, conv(in_channels, out_channels, 1), batch_norm(out_channels))


class BasicBlock(nn.Layer):
    """Two 3x3 convolutions and a shortcut (ResNet-18, -34)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, options: Options, convolve: bool):
        super().__init__()
        if options.groups != 1 or options.width_per_group != 64:
            raise UserError("MODEL.GROUPS and MODEL.WIDTH_PER_GROUP need MODEL.BLOCK: bottleneck")
        self.conv1 = conv(in_channels, width, 3, stride)
        self.bn1 = batch_norm(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = batch_norm(width)
        self.downsample = options.shortcut(in_channels, width, stride, convolve)

    def forward(self, x):
        out = conv_norm(x, self.conv1, self.bn1, F.relu)
        return conv_norm(out, self.conv2, self.bn2, F.relu, residual=self.downsample(x))


class Bottleneck(nn.Layer):
    """1x1, 3x3 (with the stride and the groups) and 1x1 convolution and a shortcut (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, options: Options, convolve: bool):
        super().__init__()
        inner = width * options.width_per_group // 64 * options.groups
        out_channels = width * self.expansion
        self.conv1 = conv(in_channels, inner, 1)
        self.bn1 = batch_norm(inner)
        self.conv2 = conv(inner, inner, 3, stride, options.groups)
        self.bn2 = batch_norm(inner)
        self.conv3 = conv(inner, out_channels, 1)
        self.bn3 = batch_norm(out_channels)
        self.downsample = options.shortcut(in_channels, out_channels, stride, convolve)

    def forward(self, x):
        out = conv_norm(x, self.conv1, self.bn1, F.relu)
        out = conv_norm(out, self.conv2, self.bn2, F.relu)
        return conv_norm(out, self.conv3, self.bn3, F.relu, residual=self.downsample(x))


def deep_stem(in_channels: int, widths: tuple[int, ...]) -> ConvSequence:
    """Return 3x3 convolutions, the first of stride 2, with BatchNorm and ReLU between them."""
    layers = [conv(in_channels, widths[0], 3, stride=2)]
    for before, after in itertools.pairwise(widths):
        layers += [batch_norm(before), nn.ReLU(), conv(before, after, 3)]
    return ConvSequence(*layers)


BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(FeatureMapModel):
    """ResNet of `len(layers)` stages; stage s has `layers[s]` blocks of width `base_width * 2**s`."""

    head_names = ("fc",)
    dialects = DIALECTS

    def __init__(self, block: str, layers: tuple[int, ...], in_channels: int, num_classes: int, base_width: int,
                 small_stem: bool, stem_widths: tuple[int, ...], first_shortcut: bool, options: Options):
        super().__init__()
        if block not in BLOCKS:
            raise UserError(f"MODEL.BLOCK {block!r}: allowed are {', '.join(BLOCKS)}")
        self.num_classes = num_classes
        self.num_stages = len(layers)
        self.small_stem = small_stem
        channels = stem_widths[-1] if stem_widths else base_width
        if stem_widths:
            self.conv1 = deep_stem(in_channels, stem_widths)
        else:
            self.conv1 = conv(in_channels, channels, 3) if small_stem else conv(in_channels, channels, 7, stride=2)
        self.bn1 = batch_norm(channels)
        for stage, depth in enumerate(layers):
            width = base_width * 2**stage
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                convolve = first_shortcut and stage == index == 0
                blocks.append(BLOCKS[block](channels, width, stride, options, convolve))
                channels = width * BLOCKS[block].expansion
            self.add_sublayer(f"layer{stage + 1}", nn.Sequential(*blocks))
        bound = channels**-0.5
        uniform = nn.initializer.Uniform(-bound, bound)
        self.fc = nn.Linear(channels, num_classes, weight_attr=uniform, bias_attr=uniform)

    def stem(self, images):
        """Return features at a quarter of the image's side, or at its full side with the small stem."""
        x = conv_norm(images, self.conv1, self.bn1, F.relu)
        return x if self.small_stem else F.max_pool2d(x, kernel_size=3, stride=2, padding=1)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's features [B, C, H, W]."""
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        x = self.stem(images)
        for stage in range(1, self.num_stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        chain = [Block("stem", self.stem, ("conv1.", "bn1."))]
        for stage in range(1, self.num_stages + 1):
            chain += layer_links(f"layer{stage}", getattr(self, f"layer{stage}"))
        return [*chain, Block("head", self.forward_head, ("fc.",))]


def build_model(
    block: str = "bottleneck",
    layers: tuple[int, ...] = (3, 4, 6, 3),
    in_channels: int = 3,
    num_classes: int = 1000,
    base_width: int = 64,
    groups: int = 1,
    width_per_group: int = 64,
    small_stem: bool = False,
    stem_widths: tuple[int, ...] = (),
    pooled_shortcut: bool = False,
    first_shortcut: bool = False,
) -> ResNet:
    """Return a ResNet; the arguments are the MODEL section of a YAML file, and the defaults are ResNet-50.

    `stem_widths` are those of a stem of 3x3 convolutions, and with `pooled_shortcut` it is a ResNet-D. With
    `first_shortcut` the first block has a convolution in its shortcut even if its shape stays, as in PaddleClas.
    """
    if small_stem and stem_widths:
        raise UserError("MODEL.SMALL_STEM and MODEL.STEM_WIDTHS: a model has one stem")
    options = Options(groups, width_per_group, pooled_shortcut)
    return ResNet(
        block, layers, in_channels, num_classes, base_width, small_stem, stem_widths, first_shortcut, options
    )
