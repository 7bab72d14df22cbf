"""VGG with and without BatchNorm (Simonyan & Zisserman 2015, https://arxiv.org/abs/1409.1556), names of torchvision."""

from paddle import nn

from image_classification.layers import ZERO, ConvSequence, Dropout
from image_classification.model import FlatModel
from image_classification.runtime import UserError

from .dialects import DIALECTS

WIDTHS = (64, 128, 256, 512, 512)


def conv3x3(in_channels: int, out_channels: int) -> nn.Conv2D:
    """Return a 3x3 convolution that keeps the image size, Kaiming-normal over its fan-out."""
    normal = nn.initializer.Normal(std=(2.0 / (out_channels * 9)) ** 0.5)
    return nn.Conv2D(in_channels, out_channels, 3, padding=1, weight_attr=normal, bias_attr=ZERO)


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Return a linear layer, normal 0.01 with zero bias."""
    return nn.Linear(in_features, out_features, weight_attr=nn.initializer.Normal(std=0.01), bias_attr=ZERO)


class VGG(FlatModel):
    """Stages of 3x3 convolutions with a max-pool after each, then three linear layers. The defaults are VGG-16."""

    dialects = DIALECTS
    side = 7  # that of 224-pixel images

    def __init__(self, layers: tuple[int, ...] = (2, 2, 3, 3, 3), batch_norm: bool = False, in_channels: int = 3,
                 num_classes: int = 1000, dropout: float = 0.5, hidden_dim: int = 4096):
        super().__init__()
        if len(layers) != len(WIDTHS):
            raise UserError(f"MODEL.LAYERS {list(layers)}: expected the depths of five stages")
        self.num_classes = num_classes
        features = []
        channels = in_channels
        for depth, width in zip(layers, WIDTHS, strict=True):
            for _ in range(depth):
                norm = [nn.BatchNorm2D(width, momentum=0.9, epsilon=1e-5)] if batch_norm else []
                features += [conv3x3(channels, width), *norm, nn.ReLU()]
                channels = width
            features.append(nn.MaxPool2D(2, 2))
        self.features = ConvSequence(*features)
        self.classifier = nn.Sequential(
            linear(channels * 7 * 7, hidden_dim), nn.ReLU(), Dropout(dropout),
            linear(hidden_dim, hidden_dim), nn.ReLU(), Dropout(dropout),
            linear(hidden_dim, num_classes),
        )  # fmt: skip


build_model = VGG  # its arguments are the MODEL section of a YAML file
