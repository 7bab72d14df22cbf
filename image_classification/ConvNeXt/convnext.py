"""ConvNeXt (Liu et al. 2022, https://arxiv.org/abs/2201.03545), with timm's parameter names and epsilon (1e-6).

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

from paddle import nn

from image_classification.layers import TRUNC_NORMAL, ZERO, DropPath, Mlp, drop_path_rates, fork, linear
from image_classification.model import Block, GradCam, Model
from image_classification.runtime import UserError

from .dialects import DIALECTS

LAYER_SCALE = 1e-6  # start of every block's gamma, section 2.6 of the paper's appendix


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int) -> nn.Conv2D:
    """Return an unpadded convolution with the usual transformer initialisation."""
    return nn.Conv2D(in_channels, out_channels, kernel_size, stride, weight_attr=TRUNC_NORMAL, bias_attr=ZERO)


class LayerNorm2D(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def __init__(self, channels: int):
        super().__init__(channels, epsilon=1e-6)

    def forward(self, x):
        return super().forward(x.transpose([0, 2, 3, 1])).transpose([0, 3, 1, 2])


class ConvNeXtBlock(nn.Layer):
    """Depthwise 7x7 convolution, LayerNorm, MLP, layer scale and a shortcut, [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, dim: int, drop_path: float):
        super().__init__()
        self.conv_dw = nn.Conv2D(
            dim, dim, kernel_size=7, padding=3, groups=dim, weight_attr=TRUNC_NORMAL, bias_attr=ZERO
        )
        self.norm = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp = Mlp(dim, 4 * dim)
        self.gamma = self.create_parameter([dim], default_initializer=nn.initializer.Constant(LAYER_SCALE))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x, shortcut = fork(x)
        x = self.conv_dw(x).transpose([0, 2, 3, 1])  # channels last for the linear layers
        x = self.mlp(self.norm(x)) * self.gamma
        return shortcut + self.drop_path(x.transpose([0, 3, 1, 2]))


class ConvNeXtStage(nn.Layer):
    """Halving of the image side (but not in the first stage), then blocks."""

    def __init__(self, in_channels: int, dim: int, rates: list[float], is_first: bool):
        super().__init__()
        self.downsample = nn.Identity() if is_first else nn.Sequential(
            LayerNorm2D(in_channels), conv(in_channels, dim, kernel_size=2, stride=2)
        )
        self.blocks = nn.Sequential(*(ConvNeXtBlock(dim, rate) for rate in rates))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Layer):
    """Average pooling, LayerNorm and the classifier, [B, C, H, W] -> [B, num_classes]."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, epsilon=1e-6)
        self.fc = linear(dim, num_classes)

    def forward(self, x):
        return self.fc(self.norm(x.mean(axis=[2, 3])))


class ConvNeXt(Model):
    """ConvNeXt of four stages; stage s has `depths[s]` blocks of `dims[s]` channels."""

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, depths: tuple[int, ...], dims: tuple[int, ...], in_channels: int, num_classes: int,
                 drop_path: float):
        super().__init__()
        if len(depths) != len(dims):
            raise UserError(f"MODEL.DEPTHS {list(depths)} and MODEL.DIMS {list(dims)} must have the same length")
        self.num_classes = num_classes
        self.stem = nn.Sequential(conv(in_channels, dims[0], kernel_size=4, stride=4), LayerNorm2D(dims[0]))
        rates = iter(drop_path_rates(drop_path, sum(depths)))
        self.stages = nn.Sequential(*(
            ConvNeXtStage(dims[max(stage - 1, 0)], dims[stage], [next(rates) for _ in range(depth)], stage == 0)
            for stage, depth in enumerate(depths)
        ))
        self.head = Head(dims[-1], num_classes)

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W], at least 32 pixels."""
        return self.head(self.stages(self.stem(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`."""
        chain = [Block("stem", self.stem, ("stem.",))]
        for index, stage in enumerate(self.stages):
            if index:
                name = f"stages.{index}.downsample"
                chain.append(Block(name, stage.downsample, (f"{name}.",)))
            for number, block in enumerate(stage.blocks):
                name = f"stages.{index}.blocks.{number}"
                chain.append(Block(name, block, (f"{name}.",)))
        return [*chain, Block("head", self.head, ("head.",))]

    def explanation(self) -> GradCam:
        """Return the last stage's features, [B, C, H, W]."""
        return GradCam(into="head")


def build_model(
    depths: tuple[int, ...] = (3, 3, 9, 3),
    dims: tuple[int, ...] = (96, 192, 384, 768),
    in_channels: int = 3,
    num_classes: int = 1000,
    drop_path: float = 0.0,
) -> ConvNeXt:
    """Return a ConvNeXt; the arguments are the MODEL section of a YAML file, and the defaults are ConvNeXt-T."""
    return ConvNeXt(**locals())
