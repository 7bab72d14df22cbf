"""DenseNet (Huang et al. 2017, https://arxiv.org/abs/1608.06993), with timm's parameter names.

Each layer sees what all layers of its block before it returned, and adds `growth_rate` channels to it.

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import ZERO, Dropout, conv_norm, norm_activation
from image_classification.model import Block, FeatureMapModel, layer_links
from image_classification.runtime import UserError

from .dialects import DIALECTS


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2D:
    """Return a convolution without bias that keeps the image size at stride 1, normal over its fan-in."""
    normal = nn.initializer.KaimingNormal()
    return nn.Conv2D(
        in_channels, out_channels, kernel_size, stride, kernel_size // 2, weight_attr=normal, bias_attr=False
    )


class DenseLayer(nn.Layer):
    """BatchNorm, ReLU and 1x1 convolution, the same with 3x3, [B, C, H, W] -> [B, C + growth_rate, H, W]."""

    def __init__(self, in_channels: int, growth_rate: int, bottleneck: int, dropout: float):
        super().__init__()
        inner = bottleneck * growth_rate
        self.norm1, self.conv1 = nn.BatchNorm2D(in_channels), conv(in_channels, inner, 1)
        self.norm2, self.conv2 = nn.BatchNorm2D(inner), conv(inner, growth_rate, 3)
        self.dropout = Dropout(dropout)

    def forward(self, x):
        new = conv_norm(norm_activation(x, self.norm1, F.relu), self.conv1, self.norm2, F.relu)
        new = self.conv2(new)
        return paddle.concat([x, self.dropout(new)], axis=1)


class Transition(nn.Layer):
    """BatchNorm, ReLU, a 1x1 convolution to half the channels and average pooling to half the side."""

    def __init__(self, in_channels: int):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2D(in_channels), conv(in_channels, in_channels // 2, 1)

    def forward(self, x):
        return F.avg_pool2d(self.conv(norm_activation(x, self.norm, F.relu)), kernel_size=2, stride=2)


class DenseNet(FeatureMapModel):
    """A stem, dense blocks of `depths[s]` layers with transitions between them, average pooling and the classifier.

    The defaults are DenseNet-121. The 1x1 convolution of a layer returns `bottleneck` times the growth rate.
    """

    head_names = ("classifier",)
    dialects = DIALECTS

    def __init__(self, depths: tuple[int, ...] = (6, 12, 24, 16), growth_rate: int = 32, bottleneck: int = 4,
                 in_channels: int = 3, num_classes: int = 1000, dropout: float = 0.0):
        super().__init__()
        if growth_rate < 1 or not depths or min(depths) < 1:
            raise UserError(f"MODEL.GROWTH_RATE {growth_rate} and MODEL.DEPTHS {list(depths)} must be at least 1")
        self.num_classes = num_classes
        channels = 2 * growth_rate
        layers = [("conv0", conv(in_channels, channels, 7, stride=2)), ("norm0", nn.BatchNorm2D(channels))]
        for stage, depth in enumerate(depths, start=1):
            block = []
            for index in range(1, depth + 1):
                block.append((f"denselayer{index}", DenseLayer(channels, growth_rate, bottleneck, dropout)))
                channels += growth_rate
            layers.append((f"denseblock{stage}", nn.Sequential(*block)))
            if stage < len(depths):
                layers.append((f"transition{stage}", Transition(channels)))
                channels //= 2
        self.parts = [name for name, _ in layers[2:]]
        self.features = nn.Sequential(*layers, ("norm5", nn.BatchNorm2D(channels)))
        bound = channels**-0.5
        self.classifier = nn.Linear(channels, num_classes, nn.initializer.Uniform(-bound, bound), ZERO)

    def stem(self, images):
        """Return features at a quarter of the image's side."""
        x = conv_norm(images, self.features["conv0"], self.features["norm0"], F.relu)
        return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        return self.classifier(norm_activation(x, self.features["norm5"], F.relu).mean(axis=[2, 3]))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, dense layers and transitions, are `forward` if run in order."""
        chain = [Block("stem", self.stem, ("features.conv0.", "features.norm0."))]
        for name in self.parts:
            part, prefix = self.features[name], f"features.{name}"
            is_block = isinstance(part, nn.Sequential)
            chain += layer_links(prefix, part) if is_block else [Block(prefix, part, (f"{prefix}.",))]
        return [*chain, Block("head", self.forward_head, ("features.norm5.", "classifier."))]


build_model = DenseNet  # its arguments are the MODEL section of a YAML file
