"""PVTv2, the pyramid vision transformer with overlapping patches (Wang et al. 2022, https://arxiv.org/abs/2106.13797).

Each of four stages halves the image side. Its places attend to a smaller map, which a strided convolution or a mean
makes, and a depth-wise convolution inside each MLP tells them where they are.

Parameter names are timm's. Shapes use: B batch, C channels, H and W the sides of the map, N = H * W, M places of the
smaller map, h heads, d = C // h.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import Dropout, DropPath, Mlp, conv, linear, residual, residual_norm, stage_rates
from image_classification.model import Block, Column, Count, Draw, GradCam, Model, Row, stage_links
from image_classification.runtime import UserError

from .dialects import DIALECTS

POOLED = 7  # side of the map that linear attention reads
NORM_EPSILON = 1e-6  # of the blocks and stages


def convolved(layer, x):
    """Return what a convolution makes of a map with its channels last, [B, H, W, C]."""
    return layer(x.transpose([0, 3, 1, 2])).transpose([0, 2, 3, 1])


class OverlapPatchEmbed(nn.Layer):
    """A strided convolution whose windows overlap, and a norm, [B, H, W, C] -> [B, H', W', C']."""

    def __init__(self, in_channels: int, dim: int, kernel_size: int, stride: int, epsilon: float):
        super().__init__()
        self.proj = conv(in_channels, dim, kernel_size, stride, bias=True)
        self.norm = nn.LayerNorm(dim, epsilon=epsilon)

    def forward(self, x):
        return self.norm(convolved(self.proj, x))


class ReducedAttention(nn.Layer):
    """Attention of all places to those of a smaller map, [B, H, W, C] -> [B, H, W, C].

    The map is `sr_ratio` times smaller in each direction, or 7x7 with `linear_attention`.
    """

    def __init__(self, dim: int, num_heads: int, sr_ratio: int, linear_attention: bool, epsilon: float, dropout: float,
                 attention_dropout: float):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"MODEL.NUM_HEADS {num_heads} does not divide the width of the tokens, {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.pools = linear_attention
        self.reduces = linear_attention or sr_ratio > 1
        self.q = linear(dim, dim)
        self.kv = linear(dim, 2 * dim)
        if self.reduces:
            side = 1 if linear_attention else sr_ratio
            self.sr = conv(dim, dim, side, side, bias=True, padding=0)
            self.norm = nn.LayerNorm(dim, epsilon=epsilon)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)
        self.proj_drop = Dropout(dropout)

    def reduced(self, x):
        """Return the map that is read, [B, H', W', C]."""
        if not self.reduces:
            return x
        layer = (lambda maps: self.sr(F.adaptive_avg_pool2d(maps, POOLED))) if self.pools else self.sr
        x = self.norm(convolved(layer, x))
        return F.gelu(x) if self.pools else x

    def heads(self, x, count):
        """Return places of a map of `count` heads' channels, [B, H, W, count * d], as [B, count, H * W, d]."""
        return x.reshape([x.shape[0], x.shape[1] * x.shape[2], count, self.head_dim]).transpose([0, 2, 1, 3])

    def forward(self, x):
        query = self.heads(self.q(x), self.num_heads) * self.head_dim**-0.5  # [B, h, N, d]
        both = self.heads(self.kv(self.reduced(x)), 2 * self.num_heads)
        key, value = paddle.split(both, 2, axis=1)  # 2 x [B, h, M, d]
        weights = self.attn_drop(F.softmax(paddle.matmul(query, key, transpose_y=True), axis=-1))  # [B, h, N, M]
        taken = paddle.matmul(weights, value).transpose([0, 2, 1, 3]).reshape([*x.shape[:3], -1])
        return self.proj_drop(self.proj(taken))

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        heads = {"num_heads": Count("attention heads"), "q": Column(), "kv": Column(blocks=2)}
        return heads | {"attn_drop": Draw(), "proj": Row()}


class ConvMlp(Mlp):
    """An MLP with a depth-wise convolution of its hidden map, [B, H, W, C] -> [B, H, W, C]."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float, has_relu: bool):
        super().__init__(dim, hidden_dim, dropout)
        self.has_relu = has_relu
        self.dwconv = conv(hidden_dim, hidden_dim, 3, groups=hidden_dim, bias=True)

    def forward(self, x):
        x = F.relu(self.fc1(x)) if self.has_relu else self.fc1(x)
        return self.drop2(self.fc2(self.drop1(F.gelu(convolved(self.dwconv, x)))))

    def tensor_parallel_plan(self):
        """Not shared: the convolution is that of all hidden units."""
        return {}


class PvtBlock(nn.Layer):
    """Pre-norm transformer block over a map, [B, H, W, C] -> [B, H, W, C]."""

    def __init__(self, dim: int, mlp_ratio: float, drop_path: float, linear_attention: bool, dropout: float, **options):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=NORM_EPSILON)
        self.attn = ReducedAttention(dim, linear_attention=linear_attention, dropout=dropout, **options)
        self.norm2 = nn.LayerNorm(dim, epsilon=NORM_EPSILON)
        self.mlp = ConvMlp(dim, int(dim * mlp_ratio), dropout, linear_attention)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x, normed = residual_norm(x, self.attn(self.norm1(x)), self.norm2, drop_path=self.drop_path)
        return residual(x, self.mlp(normed), drop_path=self.drop_path)


class Stage(nn.Layer):
    """Halving of the image side (but not in the first stage), blocks, and a norm."""

    def __init__(self, in_channels: int, dim: int, is_first: bool, rates: list[float], epsilon: float, **options):
        super().__init__()
        self.downsample = nn.Identity() if is_first else OverlapPatchEmbed(in_channels, dim, 3, 2, epsilon)
        self.blocks = nn.LayerList([PvtBlock(dim, drop_path=rate, epsilon=epsilon, **options) for rate in rates])
        self.norm = nn.LayerNorm(dim, epsilon=NORM_EPSILON)


class PyramidVisionTransformer(Model):
    """PVTv2 whose stage s has `depths[s]` blocks of `dims[s]` channels. The defaults are PVTv2-B0.

    Args:
        sr_ratio: of each stage, how much smaller the map is that its tokens attend to.
        linear_attention: that map is 7x7 in each stage, whatever the image's size ("PVTv2-Li").
        embed_epsilon: of the norms that follow a convolution.
    """

    head_names = ("head",)
    dialects = DIALECTS

    def __init__(self, depths: tuple[int, ...] = (2, 2, 2, 2), dims: tuple[int, ...] = (32, 64, 160, 256),
                 num_heads: tuple[int, ...] = (1, 2, 5, 8), mlp_ratio: tuple[float, ...] = (8.0, 8.0, 4.0, 4.0),
                 sr_ratio: tuple[int, ...] = (8, 4, 2, 1), linear_attention: bool = False, in_channels: int = 3,
                 num_classes: int = 1000, embed_epsilon: float = 1e-5, dropout: float = 0.0,
                 attention_dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        lists = {"DEPTHS": depths, "DIMS": dims, "NUM_HEADS": num_heads, "MLP_RATIO": mlp_ratio, "SR_RATIO": sr_ratio}
        if len({len(values) for values in lists.values()}) > 1:
            given = ", ".join(f"{name} {list(values)}" for name, values in lists.items())
            raise UserError(f"MODEL.{given} must have the same length")
        self.num_classes = num_classes
        self.patch_embed = OverlapPatchEmbed(in_channels, dims[0], 7, 4, embed_epsilon)
        self.stages = nn.LayerList([
            Stage(dims[max(index - 1, 0)], dims[index], index == 0, rates, embed_epsilon,
                  num_heads=num_heads[index], mlp_ratio=mlp_ratio[index], sr_ratio=sr_ratio[index],
                  linear_attention=linear_attention, dropout=dropout, attention_dropout=attention_dropout)
            for index, rates in enumerate(stage_rates(drop_path, depths))
        ])
        self.head = linear(dims[-1], num_classes)

    def embed(self, images):
        """Return the patches of images [B, in_channels, H, W] as a map, [B, H / 4, W / 4, C]."""
        return self.patch_embed(images.transpose([0, 2, 3, 1]))

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's map [B, H, W, C]."""
        return self.head(x.mean(axis=[1, 2]))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        stages = stage_links("stages", self.stages, then=("norm",))
        return [
            Block("patch_embed", self.embed, ("patch_embed.",)), *stages, Block("head", self.forward_head, ("head.",)),
        ]  # fmt: skip

    def explanation(self) -> GradCam:
        """Return the last stage's features, [B, H, W, C]."""
        return GradCam(into="head", axes="BHWC")


build_model = PyramidVisionTransformer  # its arguments are the MODEL section of a YAML file
