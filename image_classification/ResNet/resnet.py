"""ResNet (He et al. 2016, https://arxiv.org/abs/1512.03385), v1.5: a bottleneck strides in its 3x3 convolution.

Parameter names and initialisation are torchvision's, so its weights load name by name.
ResNeXt (Xie et al. 2017) and Wide ResNet (Zagoruyko & Komodakis 2016) differ in `groups` and `width_per_group` only.
"""

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import fork
from image_classification.model import Block, GradCam, Model
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


class BasicBlock(nn.Layer):
    """Two 3x3 convolutions and a shortcut (ResNet-18, -34)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, groups: int, width_per_group: int):
        super().__init__()
        if groups != 1 or width_per_group != 64:
            raise UserError("MODEL.GROUPS and MODEL.WIDTH_PER_GROUP need MODEL.BLOCK: bottleneck")
        self.conv1 = conv(in_channels, width, 3, stride)
        self.bn1 = batch_norm(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = batch_norm(width)
        self.downsample = downsample(in_channels, width, stride)

    def forward(self, x):
        x, shortcut = fork(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(shortcut))


class Bottleneck(nn.Layer):
    """1x1, 3x3 (with the stride and the groups) and 1x1 convolution and a shortcut (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, groups: int, width_per_group: int):
        super().__init__()
        inner = width * width_per_group // 64 * groups
        out_channels = width * self.expansion
        self.conv1 = conv(in_channels, inner, 1)
        self.bn1 = batch_norm(inner)
        self.conv2 = conv(inner, inner, 3, stride, groups)
        self.bn2 = batch_norm(inner)
        self.conv3 = conv(inner, out_channels, 1)
        self.bn3 = batch_norm(out_channels)
        self.downsample = downsample(in_channels, out_channels, stride)

    def forward(self, x):
        x, shortcut = fork(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(shortcut))


def downsample(in_channels: int, out_channels: int, stride: int) -> nn.Layer:
    """Return the shortcut: a strided 1x1 convolution where the shape changes, else the identity."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(conv(in_channels, out_channels, 1, stride), batch_norm(out_channels))


BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(Model):
    """ResNet of `len(layers)` stages; stage s has `layers[s]` blocks of width `base_width * 2**s`."""

    head_names = ("fc",)
    dialects = DIALECTS

    def __init__(self, block: str, layers: tuple[int, ...], in_channels: int, num_classes: int, base_width: int,
                 groups: int, width_per_group: int, small_stem: bool):
        super().__init__()
        if block not in BLOCKS:
            raise UserError(f"MODEL.BLOCK {block!r}: allowed are {', '.join(BLOCKS)}")
        self.num_classes = num_classes
        self.num_stages = len(layers)
        self.small_stem = small_stem
        self.conv1 = conv(in_channels, base_width, 3) if small_stem else conv(in_channels, base_width, 7, stride=2)
        self.bn1 = batch_norm(base_width)
        channels = base_width
        for stage, depth in enumerate(layers):
            width = base_width * 2**stage
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BLOCKS[block](channels, width, stride, groups, width_per_group))
                channels = width * BLOCKS[block].expansion
            self.add_sublayer(f"layer{stage + 1}", nn.Sequential(*blocks))
        bound = channels**-0.5
        uniform = nn.initializer.Uniform(-bound, bound)
        self.fc = nn.Linear(channels, num_classes, weight_attr=uniform, bias_attr=uniform)

    def stem(self, images):
        """Return features at a quarter of the image's side, or at its full side with the small stem."""
        x = F.relu(self.bn1(self.conv1(images)))
        return x if self.small_stem else F.max_pool2d(x, kernel_size=3, stride=2, padding=1)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's features [B, C, H, W]."""
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W] of any size."""
        x = self.stem(images)
        for stage in range(self.num_stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`."""
        chain = [Block("stem", self.stem, ("conv1.", "bn1."))]
        for stage in range(1, self.num_stages + 1):
            for index, block in enumerate(getattr(self, f"layer{stage}")):
                name = f"layer{stage}.{index}"
                chain.append(Block(name, block, (f"{name}.",)))
        return [*chain, Block("head", self.forward_head, ("fc.",))]

    def explanation(self) -> GradCam:
        """Return the last stage's features, [B, C, H, W]."""
        return GradCam(into="head")


def build_model(
    block: str = "bottleneck",
    layers: tuple[int, ...] = (3, 4, 6, 3),
    in_channels: int = 3,
    num_classes: int = 1000,
    base_width: int = 64,
    groups: int = 1,
    width_per_group: int = 64,
    small_stem: bool = False,
) -> ResNet:
    """Return a ResNet; the arguments are the MODEL section of a YAML file, and the defaults are ResNet-50."""
    return ResNet(**locals())
