"""RepVGG (Ding et al. 2021, https://arxiv.org/abs/2101.03697), with timm's parameter names.

A block trains as a sum of a 3x3 convolution, a 1x1 convolution and the identity, each with its BatchNorm. In inference
the three are linear, and so is their sum: with `deploy` a block is one 3x3 convolution, and weights of the form that
trained are folded into it while they are read (`dialects.py`).

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import ZERO, ConvNorm, PooledHead, SqueezeExcite, conv, norm_activation
from image_classification.model import Block, FeatureMapModel, nested_links
from image_classification.runtime import UserError

from .dialects import DEPLOYED, DIALECTS


class Branches(nn.Layer):
    """The block that trains: its branches' sum, maybe squeeze-excite, ReLU, [B, C, H, W] -> [B, C', H', W']."""

    def __init__(self, in_channels: int, channels: int, stride: int, groups: int, se_ratio: float):
        super().__init__()
        has_identity = stride == 1 and in_channels == channels
        self.identity = nn.BatchNorm2D(channels) if has_identity else None
        self.conv_kxk = ConvNorm(in_channels, channels, 3, stride, groups, activation=None)
        self.conv_1x1 = ConvNorm(in_channels, channels, 1, stride, groups, activation=None)
        self.attn = squeeze_excite(channels, se_ratio)

    def forward(self, x):
        total = self.conv_1x1(x, residual=self.conv_kxk(x))
        if self.identity is not None:
            total = norm_activation(x, self.identity, residual=total)
        return F.relu(self.attn(total))


class Plain(nn.Layer):
    """The same block in inference: one 3x3 convolution, maybe squeeze-excite, ReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int, groups: int, se_ratio: float):
        super().__init__()
        self.reparam_conv = conv(in_channels, channels, 3, stride, groups, bias=True)
        self.attn = squeeze_excite(channels, se_ratio)

    def forward(self, x):
        return F.relu(self.attn(self.reparam_conv(x)))


def squeeze_excite(channels: int, ratio: float) -> nn.Layer:
    """Return the squeeze-excite of a block; ratio 0 is none."""
    return SqueezeExcite(channels, round(channels * ratio), F.relu) if ratio else nn.Identity()


class RepVGG(FeatureMapModel):
    """A block as the stem, stages of blocks, each of which begins by halving the side, and the head.

    The defaults are A0.

    Every second block of a stage has `groups` groups.
    """

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, stem_width: int = 48, widths: tuple[int, ...] = (48, 96, 192, 1280),
                 depths: tuple[int, ...] = (2, 4, 14, 1), groups: int = 1, se_ratio: float = 0.0, deploy: bool = False,
                 in_channels: int = 3, num_classes: int = 1000):
        super().__init__()
        if len(widths) != len(depths):
            raise UserError(f"MODEL.WIDTHS {list(widths)} and MODEL.DEPTHS {list(depths)} must have the same length")
        self.num_classes = num_classes
        block = Branches
        if deploy:
            block, self.dialects = Plain, DEPLOYED
        self.stem = block(in_channels, stem_width, 2, 1, se_ratio)
        stages, channels = [], stem_width
        for width, depth in zip(widths, depths, strict=True):
            if width % groups:
                raise UserError(f"MODEL.WIDTHS {list(widths)} are not multiples of MODEL.GROUPS {groups}")
            stages.append(nn.Sequential(*(
                block(width if index else channels, width, 1 if index else 2, groups if index % 2 else 1, se_ratio)
                for index in range(depth)
            )))  # fmt: skip
            channels = width
        self.stages = nn.Sequential(*stages)
        self.head = PooledHead(nn.Linear(channels, num_classes, nn.initializer.Normal(std=0.01), ZERO))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        return self.head(self.stages(self.stem(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        stages = nested_links("stages", self.stages)
        return [Block("stem", self.stem, ("stem.",)), *stages, Block("head", self.head, ("head.",))]


build_model = RepVGG  # its arguments are the MODEL section of a YAML file
