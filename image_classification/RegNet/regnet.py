"""RegNet (Radosavovic et al. 2020, https://arxiv.org/abs/2003.13678), with timm's parameter names.

Three numbers give the widths of all blocks: those of a straight line over the blocks, rounded to powers of a factor. X
has grouped bottlenecks, Y squeeze-excite in them (section 5). Beside these two of the paper stand two of timm's: Z of
linear inverted bottlenecks (Dollar et al. 2021, https://arxiv.org/abs/2103.06877), and V, a Y that normalises and
activates before each convolution.

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

import math
from collections import Counter
from typing import NamedTuple

from paddle import nn

from image_classification.inverted_residual import ACTIVATIONS, round_channels
from image_classification.layers import ZERO, ConvNorm, PooledHead, conv, drop_path_rates
from image_classification.model import Block, FeatureMapModel, layer_links
from image_classification.runtime import UserError

from .blocks import BLOCKS, Options
from .dialects import DIALECTS


class Stage(NamedTuple):
    """`depth` blocks of `channels`, whose 3x3 convolutions have groups of `group_width` channels."""

    depth: int
    channels: int
    group_width: int


def stages_of(depth: int, initial_width: int, width_slope: float, width_factor: float, group_width: int,
              bottle_ratio: float, round_up: bool) -> list[Stage]:
    """Return the stages of a quantised linear parameterisation (equations 2 to 4 of the paper).

    Widths are whole groups; with `round_up` halves of a group go up, and so does what else would lose a tenth.
    """
    if min(depth, initial_width, group_width) < 1 or width_slope < 0 or width_factor <= 1:
        raise UserError("MODEL.DEPTH, INITIAL_WIDTH and GROUP_WIDTH must be at least 1, WIDTH_SLOPE at least 0 and "
                        "WIDTH_FACTOR above 1")  # fmt: skip
    line = [initial_width + width_slope * index for index in range(depth)]
    powers = [round(math.log(width / initial_width) / math.log(width_factor)) for width in line]
    depths = Counter(round(initial_width * width_factor**power / 8) * 8 for power in powers)
    stages = []
    for width, blocks in sorted(depths.items()):
        inner = int(width * bottle_ratio)
        if inner < 1:
            raise UserError(f"MODEL.INITIAL_WIDTH {initial_width} and BOTTLE_RATIO {bottle_ratio} leave no width")
        group = min(group_width, inner)
        rounded = round_channels(inner, group) if round_up else max(1, round(inner / group)) * group
        stage = Stage(blocks, int(rounded / bottle_ratio), group)
        if (inner := round(stage.channels * bottle_ratio)) % group:
            raise UserError(f"MODEL.BOTTLE_RATIO {bottle_ratio} gives convolutions of {inner} channels, which is not a "
                            f"multiple of MODEL.GROUP_WIDTH {group}")  # fmt: skip
        stages.append(stage)
    return stages


class RegNet(FeatureMapModel):
    """A strided convolution, the stages `s1`, `s2` ... of blocks `b1`, `b2` ..., which halve the side, and the head."""

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, stages: list[Stage], block: str, options: Options, stem_width: int, head_width: int,
                 in_channels: int, num_classes: int, drop_path: float):
        super().__init__()
        self.num_classes = num_classes
        activation = options.activation
        if block == "preact":
            self.stem = conv(in_channels, stem_width, 3, stride=2)
        else:
            self.stem = ConvNorm(in_channels, stem_width, 3, stride=2, activation=activation)
        rates = iter(drop_path_rates(drop_path, sum(stage.depth for stage in stages)))
        self.num_stages, channels = len(stages), stem_width
        for number, stage in enumerate(stages, start=1):
            blocks = []
            for index in range(1, stage.depth + 1):
                stride = 2 if index == 1 else 1
                layer = BLOCKS[block](channels, stage.channels, stride, stage.group_width, options, next(rates))
                blocks.append((f"b{index}", layer))
                channels = stage.channels
            self.add_sublayer(f"s{number}", nn.Sequential(*blocks))
        self.final_conv = ConvNorm(channels, head_width, 1, activation=activation) if head_width else nn.Identity()
        self.final_activation = None if head_width or block == "bottleneck" else activation
        self.head = PooledHead(nn.Linear(head_width or channels, num_classes, nn.initializer.Normal(std=0.01), ZERO))

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's features [B, C, H, W]."""
        x = self.final_conv(x)
        return self.head(x if self.final_activation is None else self.final_activation(x))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        x = self.stem(images)
        for number in range(1, self.num_stages + 1):
            x = getattr(self, f"s{number}")(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        chain = [Block("stem", self.stem, ("stem.",))]
        for number in range(1, self.num_stages + 1):
            chain += layer_links(f"s{number}", getattr(self, f"s{number}"))
        return [*chain, Block("head", self.forward_head, ("final_conv.", "head."))]


def build_model(
    depth: int = 18,
    initial_width: int = 200,
    width_slope: float = 106.23,
    width_factor: float = 2.48,
    group_width: int = 112,
    round_up: bool = False,
    bottle_ratio: float = 1.0,
    se_ratio: float = 0.25,
    stem_width: int = 32,
    head_width: int = 0,
    block: str = "bottleneck",
    pooled_shortcut: bool = False,
    activation: str = "relu",
    in_channels: int = 3,
    num_classes: int = 1000,
    drop_path: float = 0.0,
) -> RegNet:
    """Return a RegNet; the arguments are the MODEL section of a YAML file, and the defaults are RegNetY-16GF.

    `initial_width`, `width_slope` and `width_factor` are w_0, w_a and w_m of the paper. `round_up` is torchvision's
    rounding to whole groups; `head_width` adds a 1x1 convolution to so many channels before the pooling.
    """
    for name, value, allowed in (("BLOCK", block, BLOCKS), ("ACTIVATION", activation, ACTIVATIONS)):
        if value not in allowed:
            raise UserError(f"MODEL.{name} {value!r}: allowed are {', '.join(allowed)}")
    widths = (depth, initial_width, width_slope, width_factor, group_width, bottle_ratio, round_up)
    options = Options(bottle_ratio, se_ratio, ACTIVATIONS[activation], pooled_shortcut)
    return RegNet(stages_of(*widths), block, options, stem_width, head_width, in_channels, num_classes, drop_path)
