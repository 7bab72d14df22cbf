"""XCiT, cross-covariance image transformers (El-Nouby et al. 2021, https://arxiv.org/abs/2106.09681).

Channels attend to one another instead of patches, so that the cost grows with the number of patches only; a convolution
mixes neighbours, and a class token reads the patches at the end, as in CaiT.
Parameter names are timm's, and convolutions start as the authors', by PyTorch's default.
Shapes use: B batch, N patches, C = embed_dim, h heads, d = C // h.
"""

import math

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.half_cpu import composite
from image_classification.layers import (
    TRUNC_NORMAL,
    Dropout,
    DropPath,
    Mlp,
    check_image_size,
    linear,
    product_norm,
    residual,
    residual_norm,
    torch_uniform,
)
from image_classification.model import Block, Column, Count, Draw, GradCam, Model, Row, Slice, layer_links
from image_classification.runtime import UserError
from image_classification.transformer import ClassAttention

from .dialects import DIALECTS

PATCH_SIZES = (8, 16)
BANDS = 32  # of each axis


def fourier_features(side: int) -> np.ndarray:
    """Return, float32 [1, 2 * BANDS, side, side], sines and cosines of the row, then of the column."""
    places = np.arange(1, side + 1) / (side + 1e-6) * 2 * math.pi
    band = np.arange(BANDS)
    angles = places[:, None] / 10000.0 ** (2 * (band // 2) / BANDS)
    waves = np.where(band % 2, np.cos(angles), np.sin(angles)).T  # [BANDS, side]
    rows, columns = (np.broadcast_to(part, (BANDS, side, side)) for part in (waves[:, :, None], waves[:, None]))
    return np.concatenate([rows, columns])[None].astype("float32")


class PatchEmbed(nn.Sequential):
    """Image to patches, [B, in_channels, H, W] -> [B, C, side, side], by convolutions that halve it and double C."""

    def __init__(self, patch_size: int, in_channels: int, embed_dim: int):
        halvings = patch_size.bit_length() - 1
        if embed_dim >> halvings - 1 < 1:
            raise UserError(f"MODEL.EMBED_DIM {embed_dim}: the patches halve it {halvings - 1} times")
        widths = [in_channels, *(embed_dim >> index for index in reversed(range(halvings)))]
        layers = []
        for before, width in zip(widths, widths[1:], strict=False):
            convolution = nn.Conv2D(before, width, 3, stride=2, padding=1, **torch_uniform(before * 9, bias=False))
            layers += [nn.Sequential(convolution, nn.BatchNorm2D(width)), nn.GELU()]
        super().__init__(("proj", nn.Sequential(*layers[:-1])))


class FourierPositions(nn.Layer):
    """What each place of a grid adds to its patch, [1, C, side, side]."""

    def __init__(self, side: int, dim: int):
        super().__init__()
        self.token_projection = nn.Conv2D(2 * BANDS, dim, 1, **torch_uniform(2 * BANDS))
        self.register_buffer("features", paddle.to_tensor(fourier_features(side)), persistable=False)

    def forward(self):
        return self.token_projection(self.features.astype(self.token_projection.weight.dtype))


@composite("cross_covariance", casts_as="matmul", then=("matmul",))
def cross_covariance(qkv, num_heads: int, temperature, dropout=None):
    """Return what each channel takes from those of its head, [B, N, C], for the packed projection `qkv`, [B, N, 3C] =
    [B, N, 3, h, d]: the values by the softmax of `temperature`, [h, 1, 1], times the cosine of query and key.

    Lengths are float32 in every format. `dropout` is applied to the attention weights, [B, h, d, d].
    """
    batch, tokens, _ = qkv.shape
    heads = qkv.transpose([0, 2, 1]).reshape([batch, 3 * num_heads, -1, tokens])  # [B, 3h, d, N]
    both, value = paddle.split(heads, [2 * num_heads, num_heads], axis=1)
    lengths = both.astype("float32")  # sums over all patches, in any format
    query, key = (lengths * ((lengths * lengths).sum(-1, keepdim=True) + 1e-24).rsqrt()).chunk(2, axis=1)
    query = (query * temperature.astype("float32")).astype(value.dtype)
    weights = F.softmax(paddle.matmul(query, key.astype(value.dtype), transpose_y=True), axis=-1)  # [B, h, d, d]
    if dropout is not None:
        weights = dropout(weights)
    return paddle.matmul(weights, value).reshape([batch, -1, tokens]).transpose([0, 2, 1])


class CrossCovarianceAttention(nn.Layer):
    """Each channel of a head takes from the others by the cosine of what they are over all patches, [B, N, C]."""

    def __init__(self, dim: int, num_heads: int, dropout: float, attention_dropout: float):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"MODEL.NUM_HEADS {num_heads} does not divide the width of the tokens, {dim}")
        self.num_heads = num_heads
        self.temperature = self.create_parameter([num_heads, 1, 1], default_initializer=nn.initializer.Constant(1.0))
        self.qkv = linear(dim, 3 * dim)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)
        self.proj_drop = Dropout(dropout)

    def forward(self, x):
        dropout = self.attn_drop if self.training and self.attn_drop.p else None
        return self.proj_drop(self.proj(cross_covariance(self.qkv(x), self.num_heads, self.temperature, dropout)))

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        heads = {"num_heads": Count("attention heads"), "temperature": Slice(axis=0), "qkv": Column(blocks=3)}
        return heads | {"attn_drop": Draw(), "proj": Row()}


class LocalPatchInteraction(nn.Layer):
    """Two depth-wise convolutions over the grid of patches, [B, N, C] -> [B, N, C]."""

    def __init__(self, dim: int, side: int):
        super().__init__()
        self.side = side
        self.conv1 = nn.Conv2D(dim, dim, 3, padding=1, groups=dim, **torch_uniform(9))
        self.bn = nn.BatchNorm2D(dim)
        self.conv2 = nn.Conv2D(dim, dim, 3, padding=1, groups=dim, **torch_uniform(9))

    def forward(self, x):
        x = x.transpose([0, 2, 1]).reshape([x.shape[0], x.shape[2], self.side, self.side])
        return self.conv2(self.bn(F.gelu(self.conv1(x)))).flatten(2).transpose([0, 2, 1])


class XcitBlock(nn.Layer):
    """Attention between channels, convolution between neighbours, MLP; [B, N, C] -> [B, N, C]."""

    def __init__(self, dim: int, num_heads: int, side: int, mlp_ratio: float, layer_scale: float, dropout: float,
                 attention_dropout: float, drop_path: float):
        super().__init__()
        start = nn.initializer.Constant(layer_scale)
        self.gamma1, self.gamma2, self.gamma3 = (
            self.create_parameter([dim], default_initializer=start) for _ in range(3)
        )
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-6)
        self.attn = CrossCovarianceAttention(dim, num_heads, dropout, attention_dropout)
        self.norm3 = nn.LayerNorm(dim, epsilon=1e-6)
        self.local_mp = LocalPatchInteraction(dim, side)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = residual(x, self.attn(product_norm(x, self.norm1)), self.gamma1, self.drop_path)
        x, normed = residual_norm(x, self.local_mp(self.norm3(x)), self.norm2, self.gamma3, self.drop_path)
        return residual(x, self.mlp(normed), self.gamma2, self.drop_path)


class ClassBlock(nn.Layer):
    """The class token, the first of N + 1, takes from all, [B, N + 1, C] -> [B, N + 1, C].

    The patches pass through the norms of both branches (`tokens_norm`) or of the first, as published weights need it.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, layer_scale: float, tokens_norm: bool):
        super().__init__()
        start = nn.initializer.Constant(layer_scale)
        self.gamma1, self.gamma2 = (self.create_parameter([dim], default_initializer=start) for _ in range(2))
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-6)
        self.attn = ClassAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.tokens_norm = tokens_norm

    def forward(self, x):
        normed = self.norm1(x)
        x = residual(x, paddle.concat([self.attn(normed), normed[:, 1:]], axis=1), self.gamma1)
        normed = self.norm2(x)
        token, patches = normed[:, :1], (normed if self.tokens_norm else x)[:, 1:]
        token = residual(token, self.mlp(token), self.gamma2)
        return paddle.concat([token, patches.astype(token.dtype) * 2], axis=1)


class Xcit(Model):
    """XCiT: `depth` blocks of the patches, then `class_depth` blocks that the class token reads them in.

    The defaults are XCiT-S12/16.
    """

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, image_size: int = 224, patch_size: int = 16, in_channels: int = 3, num_classes: int = 1000,
                 embed_dim: int = 384, depth: int = 12, num_heads: int = 8, mlp_ratio: float = 4.0,
                 layer_scale: float = 1.0, tokens_norm: bool = True, class_depth: int = 2, dropout: float = 0.0,
                 attention_dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        if patch_size not in PATCH_SIZES:
            raise UserError(f"MODEL.PATCH_SIZE {patch_size}: allowed are {', '.join(map(str, PATCH_SIZES))}")
        if image_size % patch_size:
            raise UserError(f"DATA.IMAGE_SIZE {image_size} is not a multiple of MODEL.PATCH_SIZE {patch_size}")
        self.num_classes = num_classes
        self.image_size = image_size
        self.side = image_size // patch_size
        self.patch_embed = PatchEmbed(patch_size, in_channels, embed_dim)
        self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=TRUNC_NORMAL)
        self.pos_embed = FourierPositions(self.side, embed_dim)
        self.pos_drop = Dropout(dropout)
        self.blocks = nn.Sequential(*(
            XcitBlock(embed_dim, num_heads, self.side, mlp_ratio, layer_scale, dropout, attention_dropout, drop_path)
            for _ in range(depth)
        ))
        self.cls_attn_blocks = nn.Sequential(*(
            ClassBlock(embed_dim, num_heads, mlp_ratio, layer_scale, tokens_norm) for _ in range(class_depth)
        ))
        self.norm = nn.LayerNorm(embed_dim, epsilon=1e-6)
        self.head = linear(embed_dim, num_classes)

    def embed(self, images):
        """Return the patches with positions, [B, N, C], for images [B, in_channels, H, W]."""
        check_image_size(images, self.image_size)
        return self.pos_drop((self.patch_embed(images) + self.pos_embed()).flatten(2).transpose([0, 2, 1]))

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's patches [B, N, C]."""
        token = self.cls_token.expand([x.shape[0], -1, -1])
        x = self.cls_attn_blocks(paddle.concat([token, x.astype(token.dtype)], axis=1))
        return self.head(self.norm(x)[:, 0])

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        return self.forward_head(self.blocks(self.embed(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        return [
            Block("embed", self.embed, ("patch_embed.", "pos_embed.")),
            *layer_links("blocks", self.blocks),
            Block("head", self.forward_head, ("cls_token", "cls_attn_blocks.", "norm.", "head.")),
        ]

    def layer_groups(self) -> list[tuple[str, ...]]:
        """Return the stem with the class token, each block, and the head."""
        blocks = [(f"blocks.{index}.",) for index in range(len(self.blocks))]
        of_class = [(f"cls_attn_blocks.{index}.",) for index in range(len(self.cls_attn_blocks))]
        return [("patch_embed.", "pos_embed.", "cls_token"), *blocks, *of_class, ("norm.", "head.")]

    def no_weight_decay(self) -> set[str]:
        """Return the class token, what gives positions and the temperatures."""
        names = {name for name, _ in self.named_parameters()}
        return {name for name in names if name == "cls_token" or "pos_embed." in name or name.endswith("temperature")}

    def explanation(self) -> GradCam:
        """Return the patches that the class token reads, [B, N, C]."""
        return GradCam(into="head", axes="BNC", grid=(self.side, self.side))


build_model = Xcit  # its arguments are the MODEL section of a YAML file
