"""Swin Transformer (Liu et al. 2021, https://arxiv.org/abs/2103.14030), with timm's parameter names, epsilon 1e-5.

Shapes use: B batch, H and W the height and width of the feature map, C channels, w window side, n = w * w tokens of a
window, G = B * (H / w) * (W / w) windows, h heads, d = C // h.
"""

import numpy as np
import paddle
from paddle import nn

from image_classification.layers import (
    TRUNC_NORMAL,
    Dropout,
    DropPath,
    Mlp,
    attention,
    drop_path_rates,
    fork,
    linear,
    rearrange,
)
from image_classification.layers import PatchEmbed as ConvPatchEmbed
from image_classification.model import Block, Column, Count, Draw, GradCam, Model, RelativePositions, Row, Slice
from image_classification.runtime import UserError

from .dialects import DIALECTS

MASKED = -100.0  # added to the score of a pair of tokens from different regions, as in the original


class PatchEmbed(ConvPatchEmbed):
    """Image to normalised patch features, [B, in_channels, H, W] -> [B, H', W', C]."""

    def __init__(self, image_size: int, patch_size: int, in_channels: int, embed_dim: int):
        super().__init__(image_size, patch_size, in_channels, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, epsilon=1e-5)

    def forward(self, images):
        tokens = self.norm(super().forward(images))  # [B, N, C]
        return tokens.reshape([tokens.shape[0], self.grid_size, self.grid_size, tokens.shape[2]])


class PatchMerging(nn.Layer):
    """Four neighbours become one token of twice the width, [B, H, W, C] -> [B, H/2, W/2, 2C]."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, epsilon=1e-5)
        self.reduction = linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        batch, height, width, dim = x.shape
        split, shape = [batch, height // 2, 2, width // 2, 2, dim], [batch, height // 2, width // 2, 4 * dim]
        return self.reduction(self.norm(rearrange(x, split, [0, 1, 3, 4, 2, 5], shape)))


def relative_position_index(window: int) -> np.ndarray:
    """Return, int64 [n * n], the row of the bias table for each pair of tokens of a window."""
    coords = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
    relative = coords[:, :, None] - coords[:, None, :] + window - 1  # [2, n, n], each 0 .. 2w - 2
    return (relative[0] * (2 * window - 1) + relative[1]).reshape(-1)


def shifted_window_mask(size: int, window: int, shift: int) -> np.ndarray:
    """Return, float32 [windows, 1, n, n], MASKED for pairs of tokens that came together by the cyclic shift only."""
    region = np.zeros(size, np.int64)
    region[size - window : size - shift] = 1
    region[size - shift :] = 2
    regions = region[:, None] * 3 + region[None, :]
    count = size // window
    regions = regions.reshape(count, window, count, window).transpose(0, 2, 1, 3).reshape(count**2, window**2)
    return np.where(regions[:, None, :] != regions[:, :, None], MASKED, 0.0).astype("float32")[:, None]


class WindowAttention(nn.Layer):
    """Self-attention within windows, [G, n, C] -> [G, n, C], with a learnt bias per head and relative position."""

    def __init__(self, dim: int, num_heads: int, window: int, attention_dropout: float, dropout: float):
        super().__init__()
        if dim % num_heads:
            raise UserError(f"Swin: a stage's width {dim} is not a multiple of its MODEL.NUM_HEADS {num_heads}")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.window = window
        self.num_tokens = window**2
        self.relative_position_bias_table = self.create_parameter(
            [(2 * window - 1) ** 2, num_heads], default_initializer=TRUNC_NORMAL
        )
        index = paddle.to_tensor(relative_position_index(window))
        self.register_buffer("relative_position_index", index, persistable=False)
        self.qkv = linear(dim, 3 * dim)
        self.attn_drop = Dropout(attention_dropout)
        self.proj = linear(dim, dim)
        self.proj_drop = Dropout(dropout)

    def forward(self, x, mask=None):
        bias = self.position_bias()
        if mask is not None:  # [windows, 1, n, n]; the windows of one image are neighbours in G
            bias = bias + mask
        dropout = self.attn_drop if self.training and self.attn_drop.p else None
        return self.proj_drop(self.proj(attention(self.qkv(x), self.num_heads, self.scale, dropout, bias)))

    def position_bias(self):
        """Return the bias of each pair of tokens, [1, h, n, n]."""
        bias = paddle.index_select(self.relative_position_bias_table, self.relative_position_index)
        return bias.reshape([1, self.num_tokens, self.num_tokens, self.num_heads]).transpose([0, 3, 1, 2])

    def tensor_parallel_plan(self):
        """Divided by heads, the biases among them; one sum after the projection."""
        return {
            "num_heads": Count("attention heads"),
            "relative_position_bias_table": Slice(axis=1),
            "qkv": Column(blocks=3),
            "attn_drop": Draw(),
            "proj": Row(),
        }


class SwinBlock(nn.Layer):
    """Window attention and MLP with shortcuts, [B, H, W, C] -> [B, H, W, C]; every second block shifts its windows."""

    def __init__(self, dim: int, num_heads: int, size: int, window: int, shift: int, mlp_ratio: float, dropout: float,
                 attention_dropout: float, drop_path: float):
        super().__init__()
        if size <= window:  # one window holds the whole map: nothing to shift
            window, shift = size, 0
        if size % window:
            raise UserError(f"Swin: a {size}x{size} feature map does not divide into windows of {window}x{window};"
                            " change DATA.IMAGE_SIZE or MODEL.WINDOW_SIZE")
        self.window = window
        self.shift = shift
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-5)
        self.attn = WindowAttention(dim, num_heads, window, attention_dropout, dropout)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-5)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout)
        self.drop_path = DropPath(drop_path)
        mask = paddle.to_tensor(shifted_window_mask(size, window, shift)) if shift else None
        self.register_buffer("attn_mask", mask, persistable=False)

    def forward(self, x):
        x, shortcut = fork(x)
        x, shortcut = fork(shortcut + self.drop_path(self.attend(self.norm1(x))))
        return shortcut + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, x):
        """Return window attention over the map, with the cyclic shift done and undone."""
        batch, height, width, dim = x.shape
        window, shift = self.window, self.shift
        if shift:
            x = paddle.roll(x, shifts=(-shift, -shift), axis=(1, 2))
        rows, columns = height // window, width // window
        # [B, H/w, w, W/w, w * C] -> [B, H/w, W/w, w, w * C] and back
        swapped = [0, 1, 3, 2, 4]
        windows = [batch * rows * columns, window * window, dim]
        x = rearrange(x, [batch, rows, window, columns, window * dim], swapped, windows)
        x = self.attn(x, self.attn_mask)
        x = rearrange(x, [batch, rows, columns, window, window * dim], swapped, [batch, height, width, dim])
        return paddle.roll(x, shifts=(shift, shift), axis=(1, 2)) if shift else x


class SwinStage(nn.Layer):
    """Patch merging (but not in the first stage), then blocks."""

    def __init__(self, dim: int, depth: int, is_first: bool, rates: list[float], window: int, **block_options):
        super().__init__()
        self.downsample = nn.Identity() if is_first else PatchMerging(dim // 2)
        self.blocks = nn.Sequential(*(
            SwinBlock(dim, window=window, shift=window // 2 * (i % 2), drop_path=rates[i], **block_options)
            for i in range(depth)
        ))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Layer):
    """Average pooling and the classifier, [B, H, W, C] -> [B, num_classes]."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.fc = linear(dim, num_classes)

    def forward(self, x):
        return self.fc(x.mean(axis=[1, 2]))


class SwinTransformer(Model):
    """Swin of `len(depths)` stages; stage s has width `embed_dim * 2**s`."""

    head_names = ("head.fc",)
    dialects = DIALECTS
    not_weights = (r".*\.relative_position_index", r".*\.attn_mask")

    def __init__(self, image_size: int, patch_size: int, in_channels: int, num_classes: int, embed_dim: int,
                 depths: tuple[int, ...], num_heads: tuple[int, ...], window_size: int, mlp_ratio: float,
                 dropout: float, attention_dropout: float, drop_path: float):
        super().__init__()
        if len(depths) != len(num_heads):
            raise UserError(f"MODEL.DEPTHS {list(depths)} and MODEL.NUM_HEADS {list(num_heads)} differ in length")
        self.num_classes = num_classes
        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        size = self.patch_embed.grid_size
        if size % 2 ** (len(depths) - 1):
            raise UserError(f"DATA.IMAGE_SIZE {image_size} cannot be halved {len(depths) - 1} times after the patches"
                            f" of {patch_size} pixels")
        rates = drop_path_rates(drop_path, sum(depths))
        self.layers = nn.Sequential(*(
            SwinStage(
                embed_dim * 2**stage,
                depth,
                stage == 0,
                rates[sum(depths[:stage]) : sum(depths[: stage + 1])],
                window_size,
                num_heads=num_heads[stage],
                size=size // 2**stage,
                mlp_ratio=mlp_ratio,
                dropout=dropout,
                attention_dropout=attention_dropout,
            )
            for stage, depth in enumerate(depths)
        ))
        dim = embed_dim * 2 ** (len(depths) - 1)
        self.norm = nn.LayerNorm(dim, epsilon=1e-5)
        self.head = Head(dim, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's features [B, H, W, C]."""
        return self.head(self.norm(x))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        return self.forward_head(self.layers(self.patch_embed(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`."""
        chain = [Block("patch_embed", self.patch_embed, ("patch_embed.",))]
        for index, stage in enumerate(self.layers):
            if index:
                name = f"layers.{index}.downsample"
                chain.append(Block(name, stage.downsample, (f"{name}.",)))
            for number, block in enumerate(stage.blocks):
                name = f"layers.{index}.blocks.{number}"
                chain.append(Block(name, block, (f"{name}.",)))
        return [*chain, Block("head", self.forward_head, ("norm.", "head."))]

    def position_embeddings(self) -> dict[str, RelativePositions]:
        """Return the bias tables of all blocks."""
        return {
            f"{name}.relative_position_bias_table": RelativePositions((layer.window, layer.window))
            for name, layer in self.named_sublayers()
            if isinstance(layer, WindowAttention)
        }

    def explanation(self) -> GradCam:
        """Return the last stage's features, [B, H, W, C]."""
        return GradCam(into="head", axes="BHWC")

    def no_weight_decay(self) -> set[str]:
        """Return the names of the position biases, which weight decay must leave alone."""
        return {name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")}


def build_model(
    image_size: int = 224,
    patch_size: int = 4,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 96,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    num_heads: tuple[int, ...] = (3, 6, 12, 24),
    window_size: int = 7,
    mlp_ratio: float = 4.0,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> SwinTransformer:
    """Return a Swin; the arguments are the MODEL section of a YAML file, and the defaults are Swin-T."""
    return SwinTransformer(**locals())
