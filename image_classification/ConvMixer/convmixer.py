"""ConvMixer (Trockman & Kolter 2022, https://arxiv.org/abs/2201.09792), with timm's parameter names.

Patches of the image keep their grid: a depthwise convolution with a large kernel mixes them, a 1x1 convolution their
channels. A BatchNorm follows each activation.

Shapes use: B batch, C = embed_dim channels, H and W the sides of the grid of patches.
"""

from paddle import nn

from image_classification.layers import conv, linear
from image_classification.model import Block, FeatureMapModel, layer_links
from image_classification.runtime import UserError

from .dialects import DIALECTS

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class Residual(nn.Layer):
    """The sum of a layer's input and output."""

    def __init__(self, fn: nn.Layer):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


def normed(convolution: nn.Conv2D, activation: str) -> list[nn.Layer]:
    """Return a convolution, an activation and a BatchNorm."""
    return [convolution, ACTIVATIONS[activation](), nn.BatchNorm2D(convolution.weight.shape[0])]


def block(dim: int, kernel_size: int, activation: str) -> nn.Sequential:
    """Return depthwise convolution beside a shortcut, then 1x1 convolution, [B, C, H, W] -> [B, C, H, W]."""
    depthwise = conv(dim, dim, kernel_size, groups=dim, bias=True)
    pointwise = conv(dim, dim, 1, bias=True)
    return nn.Sequential(Residual(nn.Sequential(*normed(depthwise, activation))), *normed(pointwise, activation))


class ConvMixer(FeatureMapModel):
    """Patches by a strided convolution, `depth` blocks, average pooling and the classifier.

    The defaults are 1536/20.
    """

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, patch_size: int = 7, in_channels: int = 3, num_classes: int = 1000, embed_dim: int = 1536,
                 depth: int = 20, kernel_size: int = 9, activation: str = "gelu"):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"MODEL.ACTIVATION {activation!r}: allowed are {', '.join(ACTIVATIONS)}")
        if kernel_size % 2 == 0:
            raise UserError(f"MODEL.KERNEL_SIZE {kernel_size} must be odd: a block keeps the size of the grid")
        self.num_classes = num_classes
        patches = conv(in_channels, embed_dim, patch_size, stride=patch_size, bias=True, padding=0)
        self.stem = nn.Sequential(*normed(patches, activation))
        self.blocks = nn.Sequential(*(block(embed_dim, kernel_size, activation) for _ in range(depth)))
        self.head = linear(embed_dim, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        return self.head(x.mean(axis=[2, 3]))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        return self.forward_head(self.blocks(self.stem(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        blocks = layer_links("blocks", self.blocks)
        return [Block("stem", self.stem, ("stem.",)), *blocks, Block("head", self.forward_head, ("head.",))]


build_model = ConvMixer  # its arguments are the MODEL section of a YAML file
