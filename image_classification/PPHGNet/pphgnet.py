"""PP-HGNetV2 (PaddleClas 2023, docs/zh_CN/models/ImageNet1k/PP-HGNetV2.md there), with timm's parameter names.

A block keeps the outputs of all its layers and squeezes them together, as VoVNet does; the later stages have depthwise
convolutions with large kernels. The small variants have a learned scale and shift after each activation.

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import ZERO, ConvNorm, Dropout, DropPath, conv, residual, stage_rates
from image_classification.model import StagedModel
from image_classification.runtime import UserError

from .dialects import DIALECTS

RIGHT_AND_BELOW = [0, 1, 0, 1]  # padding of a kernel of two that keeps the image size


class Affine(nn.Layer):
    """One learned scale and shift for all values."""

    def __init__(self):
        super().__init__()
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([1], default_initializer=ZERO)

    def forward(self, x):
        return x * self.scale + self.bias


class ConvAct(ConvNorm):
    """A convolution, BatchNorm, ReLU and, if asked for, a scale and shift."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, affine: bool, stride: int = 1,
                 groups: int = 1, padding: list[int] | None = None):
        super().__init__(in_channels, out_channels, kernel_size, stride, groups, padding=padding)
        self.lab = Affine() if affine else nn.Identity()

    def forward(self, x):
        return self.lab(super().forward(x))


class LightConv(nn.Layer):
    """A 1x1 convolution, then one of each channel by itself."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, affine: bool):
        super().__init__()
        self.conv1 = ConvNorm(in_channels, out_channels, 1, activation=None)
        self.conv2 = ConvAct(out_channels, out_channels, kernel_size, affine, groups=out_channels)

    def forward(self, x):
        return self.conv2(self.conv1(x))


class Stem(nn.Layer):
    """Two ways from half the image's side, small convolutions and a maximum, to a quarter of it."""

    def __init__(self, in_channels: int, inner: int, channels: int, affine: bool):
        super().__init__()
        self.stem1 = ConvAct(in_channels, inner, 3, affine, stride=2)
        self.stem2a = ConvAct(inner, inner // 2, 2, affine, padding=RIGHT_AND_BELOW)
        self.stem2b = ConvAct(inner // 2, inner, 2, affine, padding=RIGHT_AND_BELOW)
        self.stem3 = ConvAct(2 * inner, inner, 3, affine, stride=2)
        self.stem4 = ConvAct(inner, channels, 1, affine)

    def forward(self, images):
        x = self.stem1(images)
        largest = F.max_pool2d(F.pad(x, RIGHT_AND_BELOW), kernel_size=2, stride=1)
        return self.stem4(self.stem3(paddle.concat([largest, self.stem2b(self.stem2a(x))], axis=1)))


class HGBlock(nn.Layer):
    """A row of layers whose outputs are squeezed together by two 1x1 convolutions, [B, C, H, W] -> [B, C', H, W]."""

    def __init__(self, in_channels: int, inner: int, channels: int, num_layers: int, kernel_size: int, light: bool,
                 affine: bool, has_shortcut: bool, drop_path: float):
        super().__init__()
        layer = LightConv if light else ConvAct
        self.layers = nn.LayerList([
            layer(inner if index else in_channels, inner, kernel_size, affine) for index in range(num_layers)
        ])
        self.aggregation = nn.Sequential(
            ConvAct(in_channels + num_layers * inner, channels // 2, 1, affine),
            ConvAct(channels // 2, channels, 1, affine),
        )
        self.has_shortcut = has_shortcut
        self.drop_path = DropPath(drop_path)

    def branch(self, x):
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        return self.aggregation(paddle.concat(outputs, axis=1))

    def forward(self, x):
        if not self.has_shortcut:
            return self.branch(x)
        return residual(x, self.branch(x), drop_path=self.drop_path)


class HGStage(nn.Layer):
    """Halving of the image side (but not in the first stage), then blocks, of which the first has no shortcut."""

    def __init__(self, in_channels: int, channels: int, rates: list[float], is_first: bool, **block_options):
        super().__init__()
        self.downsample = nn.Identity() if is_first else ConvNorm(
            in_channels, in_channels, 3, stride=2, groups=in_channels, activation=None
        )
        self.blocks = nn.Sequential(*(
            HGBlock(channels if index else in_channels, channels=channels, has_shortcut=index > 0, drop_path=rate,
                    **block_options)
            for index, rate in enumerate(rates)
        ))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Layer):
    """Average pooling, a 1x1 convolution without a norm, and the classifier, [B, C, H, W] -> [B, num_classes]."""

    def __init__(self, in_channels: int, channels: int, num_classes: int, affine: bool, dropout: float):
        super().__init__()
        activations = [nn.ReLU(), Affine()] if affine else [nn.ReLU()]
        self.last_conv = nn.Sequential(conv(in_channels, channels, 1), *activations)
        self.dropout = Dropout(dropout)
        self.fc = nn.Linear(channels, num_classes, nn.initializer.KaimingUniform(), ZERO)

    def forward(self, x):
        return self.fc(self.dropout(self.last_conv(x.mean(axis=[2, 3], keepdim=True)).flatten(1)))


class PPHGNet(StagedModel):
    """A stem, stages of blocks and the head; in the first two stages convolutions are full. The defaults are B4."""

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, stem_widths: tuple[int, ...] = (32, 48), inner_widths: tuple[int, ...] = (48, 96, 192, 384),
                 widths: tuple[int, ...] = (128, 512, 1024, 2048), depths: tuple[int, ...] = (1, 1, 3, 1),
                 num_layers: int = 6, head_width: int = 2048, affine: bool = False, in_channels: int = 3,
                 num_classes: int = 1000, dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        if len(stem_widths) != 2 or not len(inner_widths) == len(widths) == len(depths):
            raise UserError("MODEL.STEM_WIDTHS must be two numbers, MODEL.INNER_WIDTHS, WIDTHS and DEPTHS of the same "
                            "length")  # fmt: skip
        self.num_classes = num_classes
        self.stem = Stem(in_channels, *stem_widths, affine)
        rates, channels, stages = stage_rates(drop_path, depths), stem_widths[-1], []
        for index, (inner, width) in enumerate(zip(inner_widths, widths, strict=True)):
            light = index >= 2
            stages.append(HGStage(
                channels, width, rates[index], index == 0, inner=inner, num_layers=num_layers,
                kernel_size=5 if light else 3, light=light, affine=affine,
            ))  # fmt: skip
            channels = width
        self.stages = nn.Sequential(*stages)
        self.head = Head(channels, head_width, num_classes, affine, dropout)


build_model = PPHGNet  # its arguments are the MODEL section of a YAML file
