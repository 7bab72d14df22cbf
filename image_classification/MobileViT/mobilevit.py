"""MobileViT (Mehta & Rastegari 2022, https://arxiv.org/abs/2110.02178) and v2 (https://arxiv.org/abs/2206.02680).

Inverted residuals, and in each of the later stages a transformer between two convolutions. It sees the map in patches
of 2x2: a place attends to those at the same corner of all patches. In v2 the cost of that grows with their number only.

Parameter names are timm's. Shapes use: B batch, C channels, H and W the sides of a map, P = 4 places of a patch,
N patches.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.inverted_residual import round_channels
from image_classification.layers import ConvNorm, PooledHead, conv, linear, rearrange
from image_classification.model import Block, FeatureMapModel, nested_links
from image_classification.runtime import UserError
from image_classification.transformer import TransformerBlock

from .dialects import DIALECTS

PATCH = 2  # side
MLP_RATIO = 2


def to_patches(x):
    """Return a map, [B, C, H, W], as [B, P, N, C]."""
    batch, channels, height, width = x.shape
    split = [batch, height // PATCH, PATCH, width // PATCH, PATCH, channels]
    return rearrange(x.transpose([0, 2, 3, 1]), split, [0, 2, 4, 1, 3, 5], [batch, PATCH * PATCH, -1, channels])


def to_map(x, height: int, width: int):
    """Return patches, [B, P, N, C], as the map that they came from, [B, C, H, W]."""
    batch, _, _, channels = x.shape
    split = [batch, PATCH, PATCH, height // PATCH, width // PATCH, channels]
    return rearrange(x, split, [0, 3, 1, 4, 2, 5], [batch, height, width, channels]).transpose([0, 3, 1, 2])


class InvertedResidual(nn.Layer):
    """1x1 convolution to `expansion` times the channels, one of each channel by itself, 1x1 back (MobileNet V2)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: float):
        super().__init__()
        wide = round_channels(in_channels * expansion)
        self.has_shortcut = stride == 1 and in_channels == out_channels
        self.conv1_1x1 = ConvNorm(in_channels, wide, 1, activation=F.silu)
        self.conv2_kxk = ConvNorm(wide, wide, 3, stride, groups=wide, activation=F.silu)
        self.conv3_1x1 = ConvNorm(wide, out_channels, 1, activation=None)

    def forward(self, x):
        out = self.conv3_1x1(self.conv2_kxk(self.conv1_1x1(x)))
        return x + out if self.has_shortcut else out


class MobileViTBlock(nn.Layer):
    """Convolutions, a transformer over patches, and a convolution that joins its map with the first, [B, C, H, W]."""

    def __init__(self, channels: int, dim: int, depth: int, num_heads: int, embed_norm: bool, norm_epsilon: float):
        super().__init__()
        self.conv_kxk = ConvNorm(channels, channels, 3, activation=F.silu)
        self.conv_1x1 = ConvNorm(channels, dim, 1, activation=F.silu) if embed_norm else conv(channels, dim, 1)
        self.transformer = nn.Sequential(*(
            TransformerBlock(dim, num_heads, MLP_RATIO, activation="silu", epsilon=1e-5) for _ in range(depth)
        ))
        self.norm = nn.LayerNorm(dim, epsilon=norm_epsilon)
        self.conv_proj = ConvNorm(dim, channels, 1, activation=F.silu)
        self.conv_fusion = ConvNorm(2 * channels, channels, 3, activation=F.silu)

    def forward(self, x):
        shortcut = x
        patches = to_patches(self.conv_1x1(self.conv_kxk(x)))
        tokens = self.norm(self.transformer(patches.flatten(0, 1)))  # [B P, N, C]
        x = self.conv_proj(to_map(tokens.reshape(patches.shape), *x.shape[2:]))
        return self.conv_fusion(paddle.concat([shortcut.astype(x.dtype), x], axis=1))


class LinearAttention(nn.Layer):
    """Each patch's value, weighted by the one mean of all patches' keys that the queries choose, [B, C, P, N]."""

    def __init__(self, dim: int):
        super().__init__()
        self.qkv_proj = conv(dim, 1 + 2 * dim, 1, bias=True)
        self.out_proj = conv(dim, dim, 1, bias=True)

    def forward(self, x):
        channels = x.shape[1]
        query, key, value = paddle.split(self.qkv_proj(x), [1, channels, channels], axis=1)
        weights = F.softmax(query, axis=-1)  # [B, 1, P, N]
        context = (key * weights.astype(key.dtype)).sum(axis=-1, keepdim=True)  # [B, C, P, 1]
        return self.out_proj(F.relu(value) * context.astype(value.dtype))


class ConvMlp(nn.Layer):
    """Two 1x1 convolutions with SiLU between them, [B, C, P, N] -> [B, C, P, N]."""

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = conv(dim, hidden_dim, 1, bias=True)
        self.fc2 = conv(hidden_dim, dim, 1, bias=True)

    def forward(self, x):
        return self.fc2(F.silu(self.fc1(x)))


class LinearBlock(nn.Layer):
    """Pre-norm transformer block of linear attention, whose norms are over all that an image has, [B, C, P, N]."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(1, dim)
        self.attn = LinearAttention(dim)
        self.norm2 = nn.GroupNorm(1, dim)
        self.mlp = ConvMlp(dim, MLP_RATIO * dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MobileViTV2Block(nn.Layer):
    """Convolutions and a transformer over patches, [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels: int, dim: int, depth: int):
        super().__init__()
        self.conv_kxk = ConvNorm(channels, channels, 3, groups=channels, activation=F.silu)
        self.conv_1x1 = conv(channels, dim, 1)
        self.transformer = nn.Sequential(*(LinearBlock(dim) for _ in range(depth)))
        self.norm = nn.GroupNorm(1, dim)
        self.conv_proj = ConvNorm(dim, channels, 1, activation=None)

    def forward(self, x):
        patches = to_patches(self.conv_1x1(self.conv_kxk(x))).transpose([0, 3, 1, 2])  # [B, C, P, N]
        patches = self.norm(self.transformer(patches)).transpose([0, 2, 3, 1])
        return self.conv_proj(to_map(patches, *x.shape[2:]))


class MobileViT(FeatureMapModel):
    """MobileViT of version 1 or 2. The defaults are MobileViT-XS.

    Args:
        dims: channels of the stem, of each inverted residual and, in version 1, of the last 1x1 convolution. The second
            residual and the last `len(hidden_dims)` halve the image's side.
        hidden_dims: channels of the transformers, one behind each of those last residuals.
        depths: their numbers of blocks.
        num_heads: of attention in version 1.
        expansion: of every inverted residual.
        embed_norm: of version 1, BatchNorm and SiLU before the transformers, as PaddleViT has them.
        norm_epsilon: of the norm behind each transformer of version 1.
        dropout: before the classifier.
    """

    head_names = ("head.fc",)
    dialects = DIALECTS

    def __init__(self, version: int = 1, dims: tuple[int, ...] = (16, 32, 48, 48, 48, 64, 80, 96, 384),
                 hidden_dims: tuple[int, ...] = (96, 120, 144), depths: tuple[int, ...] = (2, 4, 3), num_heads: int = 4,
                 expansion: float = 4.0, embed_norm: bool = False, norm_epsilon: float = 1e-5, in_channels: int = 3,
                 num_classes: int = 1000, dropout: float = 0.0):
        super().__init__()
        if version not in (1, 2):
            raise UserError(f"MODEL.VERSION {version}: allowed are 1, 2")
        if len(hidden_dims) != len(depths):
            raise UserError(f"MODEL.HIDDEN_DIMS {list(hidden_dims)} and MODEL.DEPTHS {list(depths)} must have the same "
                            "length")  # fmt: skip
        stem, *residuals = dims or (0,)  # none are refused below
        last = residuals.pop() if version == 1 and residuals else None
        plain = len(residuals) - len(hidden_dims)  # residuals without a transformer
        if plain < 2:
            raise UserError(f"MODEL.DIMS {list(dims)} must name two inverted residuals more than MODEL.HIDDEN_DIMS")
        self.num_classes = num_classes
        self.step = 2 ** (2 + len(hidden_dims)) * PATCH  # the last map, too, divides into patches
        self.stem = ConvNorm(in_channels, stem, 3, 2, activation=F.silu)
        before = [stem, *residuals]

        def residual(index):
            stride = 2 if index == 1 or index >= plain else 1
            return InvertedResidual(before[index], residuals[index], stride, expansion)

        def transformer(channels, dim, depth):
            if version == 2:
                return MobileViTV2Block(channels, dim, depth)
            return MobileViTBlock(channels, dim, depth, num_heads, embed_norm, norm_epsilon)

        self.stages = nn.Sequential(
            nn.Sequential(residual(0)),
            nn.Sequential(*(residual(index) for index in range(1, plain))),
            *(
                nn.Sequential(residual(plain + index), transformer(residuals[plain + index], dim, depth))
                for index, (dim, depth) in enumerate(zip(hidden_dims, depths, strict=True))
            ),
        )
        self.final_conv = nn.Identity() if last is None else ConvNorm(residuals[-1], last, 1, activation=F.silu)
        self.head = PooledHead(linear(residuals[-1] if last is None else last, num_classes), dropout=dropout)

    def check_image(self, height, width):
        """Raise UserError unless both are multiples of `step`: each transformer's map is cut into 2x2 patches."""
        if height % self.step or width % self.step:
            raise UserError(f"DATA.IMAGE_SIZE: image is {height}x{width} pixels, both must be multiples of {self.step}")

    def embed(self, images):
        """Return features of half the image's side, [B, C, H / 2, W / 2], for images [B, in_channels, H, W]."""
        self.check_image(*images.shape[2:])
        return self.stem(images)

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W].

        Raises:
            UserError: H or W is no multiple of 64, with another number of transformers than three of `step`.
        """
        return self.head(self.final_conv(self.stages(self.embed(images))))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        blocks = nested_links("stages", self.stages)
        if not isinstance(self.final_conv, nn.Identity):
            blocks.append(Block("final_conv", self.final_conv, ("final_conv.",)))
        return [Block("stem", self.embed, ("stem.",)), *blocks, Block("head", self.head, ("head.",))]


build_model = MobileViT  # its arguments are the MODEL section of a YAML file
