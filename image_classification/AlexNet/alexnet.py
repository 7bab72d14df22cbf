"""AlexNet in its one-column form (Krizhevsky 2014, https://arxiv.org/abs/1404.5997), parameter names of torchvision."""

from paddle import nn

from image_classification.layers import Dropout, torch_uniform
from image_classification.model import FlatModel
from image_classification.runtime import UserError

from .dialects import DIALECTS


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2D:
    """Return a convolution with bias, padded by 2 if its kernel is larger than 3, else by 1."""
    padding = 2 if kernel_size > 3 else 1
    fan_in = in_channels * kernel_size**2
    return nn.Conv2D(in_channels, out_channels, kernel_size, stride, padding, **torch_uniform(fan_in))


class AlexNet(FlatModel):
    """Five convolutions, then three linear layers that hold nearly all of the parameters."""

    dialects = DIALECTS
    side = 6  # that of 224-pixel images

    def __init__(self, in_channels: int = 3, num_classes: int = 1000, dropout: float = 0.5, hidden_dim: int = 4096):
        super().__init__()
        self.num_classes = num_classes
        self.features = nn.Sequential(
            conv(in_channels, 64, 11, stride=4), nn.ReLU(), nn.MaxPool2D(3, 2),
            conv(64, 192, 5), nn.ReLU(), nn.MaxPool2D(3, 2),
            conv(192, 384, 3), nn.ReLU(),
            conv(384, 256, 3), nn.ReLU(),
            conv(256, 256, 3), nn.ReLU(), nn.MaxPool2D(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            Dropout(dropout), nn.Linear(256 * 6 * 6, hidden_dim, **torch_uniform(256 * 6 * 6)), nn.ReLU(),
            Dropout(dropout), nn.Linear(hidden_dim, hidden_dim, **torch_uniform(hidden_dim)), nn.ReLU(),
            nn.Linear(hidden_dim, num_classes, **torch_uniform(hidden_dim)),
        )  # fmt: skip

    def check_image(self, height, width):
        """Raise UserError below 63 pixels, of which the poolings leave nothing."""
        if min(height, width) < 63:
            raise UserError(f"DATA.IMAGE_SIZE: image is {height}x{width} pixels, both must be at least 63")


build_model = AlexNet  # its arguments are the MODEL section of a YAML file
