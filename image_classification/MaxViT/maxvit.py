"""MaxViT, multi-axis vision transformer (Tu et al. 2022, https://arxiv.org/abs/2204.01697).

Each block is an inverted residual convolution, attention within windows, and attention over a grid that is as sparse as
the windows are dense: near and far, at a cost that grows with the number of pixels. Windows have the side of the last
stage's map. The published models (Google's, converted from TensorFlow) and timm's own, which were made before these
appeared, differ in what :class:`Design` says. Parameter names are timm's.

Shapes use: B batch, H and W the height and width of the feature map, C channels, h heads.
"""

from typing import NamedTuple

from paddle import nn
from paddle.nn import functional as F

from image_classification.inverted_residual import Style
from image_classification.layers import (
    DropPath,
    SqueezeExcite,
    check_image_size,
    conv_norm,
    drop_path_rates,
    linear,
    residual,
)
from image_classification.model import Block, FeatureMapModel, RelativePositions, layer_links
from image_classification.runtime import UserError

from .attention import POSITIONS, PartBlock, start_with_xavier

SQUEEZED = 16  # channels of the convolution for each one of squeeze-excite


class Design(NamedTuple):
    """What all blocks of a network have in common.

    Attributes:
        style: of the convolutions.
        conv_bias: whether the stem's, and those whose results are summed, have biases.
        expands_output: a convolution widens to multiples of the block's outputs; else of its inputs.
        epsilon: of every LayerNorm.
        activation: of the MLPs.
        heads_first: tables of positions have TensorFlow's layout; else query, key and value lie together for each head.
        xavier: linear layers of the blocks start with Xavier's uniform weights; else with truncated normals of 0.02.
    """

    style: Style
    conv_bias: bool
    expands_output: bool
    epsilon: float
    activation: str
    heads_first: bool
    xavier: bool


DESIGNS = {
    "tf": Design(Style("gelu_tanh", norm_epsilon=1e-3, same_padding=True), True, True, 1e-5, "gelu_tanh", True, False),
    "rw": Design(Style("silu"), False, False, 1e-6, "gelu", False, True),
}


class Stem(nn.Layer):
    """Two convolutions, [B, in_channels, H, W] -> [B, C, H/2, W/2]."""

    def __init__(self, in_channels: int, widths: tuple[int, int], design: Design):
        super().__init__()
        style = design.style
        self.act = style.act
        self.conv1 = style.conv(in_channels, widths[0], 3, stride=2, bias=design.conv_bias)
        self.norm1 = style.norm(widths[0])
        self.conv2 = style.conv(widths[0], widths[1], 3, bias=design.conv_bias)

    def forward(self, images):
        return self.conv2(conv_norm(images, self.conv1, self.norm1, self.act))


class PooledShortcut(nn.Layer):
    """Average pooling and, where the width changes, a 1x1 convolution, [B, C, H, W] -> [B, C', H/2, W/2]."""

    def __init__(self, in_channels: int, channels: int, design: Design):
        super().__init__()
        same = in_channels == channels
        self.expand = nn.Identity() if same else design.style.conv(in_channels, channels, 1, bias=design.conv_bias)

    def forward(self, x):
        return self.expand(F.avg_pool2d(x, 2, 2))


class MbConv(nn.Layer):
    """Inverted residual with a norm before it, [B, C, H, W] -> [B, C', H', W']."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int, design: Design, drop_path: float):
        super().__init__()
        style, inner = design.style, expansion * (channels if design.expands_output else in_channels)
        self.act = style.act
        self.shortcut = PooledShortcut(in_channels, channels, design) if stride == 2 else nn.Identity()
        self.pre_norm = style.norm(in_channels)
        self.conv1_1x1 = style.conv(in_channels, inner, 1)
        self.norm1 = style.norm(inner)
        self.conv2_kxk = style.conv(inner, inner, 3, stride, groups=inner)
        self.norm2 = style.norm(inner)
        self.se = SqueezeExcite(inner, max(inner // SQUEEZED, 1), F.silu)
        self.conv3_1x1 = style.conv(inner, channels, 1, bias=design.conv_bias)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        shortcut = x
        x = conv_norm(self.pre_norm(x), self.conv1_1x1, self.norm1, self.act)
        x = self.se(conv_norm(x, self.conv2_kxk, self.norm2, self.act))
        return residual(self.shortcut(shortcut), self.conv3_1x1(x), drop_path=self.drop_path)


class MaxVitBlock(nn.Layer):
    """Convolution, windows, grid, [B, C, H, W] -> [B, C', H', W']; the first of a stage halves the map."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int, design: Design, drop_path: float,
                 **options):
        super().__init__()
        options |= {"drop_path": drop_path, "epsilon": design.epsilon, "activation": design.activation,
                    "heads_first": design.heads_first}  # fmt: skip
        self.conv = MbConv(in_channels, channels, stride, expansion, design, drop_path)
        self.attn_block = PartBlock(channels, grid=False, **options)
        self.attn_grid = PartBlock(channels, grid=True, **options)
        if design.xavier:
            start_with_xavier(self.attn_block)
            start_with_xavier(self.attn_grid)

    def forward(self, x):
        x = self.conv(x).transpose([0, 2, 3, 1])
        return self.attn_grid(self.attn_block(x)).transpose([0, 3, 1, 2])


class Head(nn.Layer):
    """The classifier of pooled features, [B, C] -> [B, num_classes], behind a norm and a layer with tanh or neither."""

    def __init__(self, dim: int, num_classes: int, pre_logits: bool, epsilon: float):
        super().__init__()
        self.has_pre_logits = pre_logits
        if pre_logits:
            self.norm = nn.LayerNorm(dim, epsilon=epsilon)
            self.pre_logits = nn.Sequential(("fc", linear(dim, dim)))
        self.fc = linear(dim, num_classes)

    def forward(self, x):
        return self.fc(F.tanh(self.pre_logits(self.norm(x))) if self.has_pre_logits else x)


class MaxVit(FeatureMapModel):
    """MaxViT of `len(depths)` stages. The defaults are MaxViT-T.

    `design` is "tf" (the authors' weights) or "rw" (timm's own); `positions` is "table" or "mlp" (a small network).
    """

    head_names = ("head.fc",)

    def __init__(self, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000, design: str = "tf",
                 stem_widths: tuple[int, ...] = (64, 64), embed_dims: tuple[int, ...] = (64, 128, 256, 512),
                 depths: tuple[int, ...] = (2, 2, 5, 2), head_dim: int = 32, expansion: int = 4, mlp_ratio: float = 4.0,
                 positions: str = "table", layer_scale: float | None = None, pre_logits: bool = True,
                 dropout: float = 0.0, attention_dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        for key, value, allowed in (("DESIGN", design, DESIGNS), ("POSITIONS", positions, POSITIONS)):
            if value not in allowed:
                raise UserError(f"MODEL.{key} {value!r}: allowed are {', '.join(allowed)}")
        if len(stem_widths) != 2 or not depths or len(depths) != len(embed_dims):
            raise UserError(f"MODEL.STEM_WIDTHS {list(stem_widths)} has two widths, and MODEL.DEPTHS {list(depths)} as "
                            f"many as MODEL.EMBED_DIMS {list(embed_dims)}")  # fmt: skip
        shrink = 2 ** (len(depths) + 1)
        if image_size < 1 or image_size % shrink:
            raise UserError(f"DATA.IMAGE_SIZE {image_size} is not a multiple of {shrink}")
        self.num_classes = num_classes
        self.image_size = image_size
        self.window = image_size // shrink
        chosen = DESIGNS[design]
        self.stem = Stem(in_channels, stem_widths, chosen)
        rates = iter(drop_path_rates(drop_path, sum(depths)))
        widths = [stem_widths[1], *embed_dims]
        self.stages = nn.Sequential(*(
            nn.Sequential(("blocks", nn.Sequential(*[
                MaxVitBlock(dim if number else before, dim, 1 if number else 2, expansion, chosen, next(rates),
                            head_dim=head_dim, window=self.window, positions=positions, mlp_ratio=mlp_ratio,
                            layer_scale=layer_scale, attention_dropout=attention_dropout, dropout=dropout)
                for number in range(depth)
            ])))
            for before, dim, depth in zip(widths, embed_dims, depths, strict=False)
        ))  # fmt: skip
        self.norm = nn.Identity() if pre_logits else nn.LayerNorm(embed_dims[-1], epsilon=chosen.epsilon)
        self.head = Head(embed_dims[-1], num_classes, pre_logits, chosen.epsilon)

    def embed(self, images):
        """Return features of half the image's side, [B, C, H, W]."""
        check_image_size(images, self.image_size)
        return self.stem(images)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        return self.head(self.norm(x.transpose([0, 2, 3, 1])).mean(axis=[1, 2]))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        return self.forward_head(self.stages(self.embed(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        chain = [Block("stem", self.embed, ("stem.",))]
        for index, stage in enumerate(self.stages):
            chain += layer_links(f"stages.{index}.blocks", stage.blocks)
        return [*chain, Block("head", self.forward_head, ("norm.", "head."))]

    def position_embeddings(self) -> dict[str, RelativePositions]:
        """Return the bias tables of all blocks; networks that give the biases fit every window."""
        names = [name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")]
        return dict.fromkeys(names, RelativePositions((self.window, self.window)))

    def no_weight_decay(self) -> set[str]:
        """Return the names of what gives the position biases."""
        return {name for name, _ in self.named_parameters() if ".rel_pos." in name}


build_model = MaxVit  # its arguments are the MODEL section of a YAML file
