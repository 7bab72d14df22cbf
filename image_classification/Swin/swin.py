"""Swin Transformer (Liu et al. 2021, https://arxiv.org/abs/2103.14030), with timm's parameter names, epsilon 1e-5.

Swin V2 (Liu et al. 2022, https://arxiv.org/abs/2111.09883) has another attention within the windows, and its norms end
each branch and follow the merging, so that what a deep network adds to its shortcut stays small.

Shapes use: B batch, H and W the height and width of the feature map, C channels, w window side.
"""

import paddle
from paddle import nn

from image_classification.half_cpu import composite
from image_classification.layers import (
    ZERO,
    DropPath,
    Mlp,
    PooledHead,
    linear,
    product_norm,
    rearrange,
    residual,
    residual_norm,
    stage_rates,
)
from image_classification.layers import PatchEmbed as ConvPatchEmbed
from image_classification.model import Block, GradCam, Model, RelativePositions, stage_links
from image_classification.runtime import UserError

from .attention import CosineWindowAttention, WindowAttention, shifted_window_mask
from .dialects import DIALECTS


@composite("windows", casts_as="linear")  # what reads the windows rounds them, or, with less to copy, their map
def windows(x, window: int, shift: int):
    """Return the windows, [G, w * w, C], of maps [B, H, W, C] that are shifted cyclically, up and to the left."""
    batch, height, width, dim = x.shape
    if shift:
        x = paddle.roll(x, shifts=(-shift, -shift), axis=(1, 2))
    # [B, H/w, w, W/w, w * C] -> [B, H/w, W/w, w, w * C]
    split = [batch, height // window, window, width // window, window * dim]
    return x.reshape(split).transpose([0, 1, 3, 2, 4]).reshape([-1, window * window, dim])


@composite("norm_windows", casts_as="layer_norm", result_as="linear")
def norm_windows(x, norm: nn.Layer, window: int, shift: int):
    """Return the windows of `norm(x)`, which a linear layer alone reads."""
    return windows(norm(x), window, shift)


@composite("maps")
def maps(x, window: int, shift: int, height: int, width: int):
    """Return the maps, [B, H, W, C], whose windows are `x`, [G, w * w, C]: the way back from :func:`windows`."""
    dim = x.shape[-1]
    split = [-1, height // window, width // window, window, window * dim]
    x = x.reshape(split).transpose([0, 1, 3, 2, 4]).reshape([-1, height, width, dim])
    return paddle.roll(x, shifts=(shift, shift), axis=(1, 2)) if shift else x


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

    def __init__(self, dim: int, post_norm: bool):
        super().__init__()
        self.post_norm = post_norm
        self.norm = nn.LayerNorm(2 * dim if post_norm else 4 * dim, epsilon=1e-5)
        self.reduction = linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        batch, height, width, dim = x.shape
        split, shape = [batch, height // 2, 2, width // 2, 2, dim], [batch, height // 2, width // 2, 4 * dim]
        x = rearrange(x, split, [0, 1, 3, 4, 2, 5], shape)
        return self.norm(self.reduction(x)) if self.post_norm else self.reduction(product_norm(x, self.norm))


class SwinBlock(nn.Layer):
    """Window attention and MLP with shortcuts, [B, H, W, C] -> [B, H, W, C]; every second block shifts its windows.

    `pretrained_window` is that of a block of Swin V2 (0: `window`), None makes one of the first Swin.
    """

    def __init__(self, dim: int, num_heads: int, size: int, window: int, shift: int, mlp_ratio: float, dropout: float,
                 attention_dropout: float, drop_path: float, pretrained_window: int | None = None):
        super().__init__()
        if size <= window:  # one window holds the whole map: nothing to shift
            window, shift = size, 0
        if size % window:
            raise UserError(f"Swin: a {size}x{size} feature map does not divide into windows of {window}x{window};"
                            " change DATA.IMAGE_SIZE or MODEL.WINDOW_SIZE")
        self.window = window
        self.shift = shift
        self.post_norm = pretrained_window is not None
        start = ZERO if self.post_norm else None  # Swin V2 begins with its shortcuts alone
        options = dim, num_heads, window, attention_dropout, dropout
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-5, weight_attr=start)
        self.attn = CosineWindowAttention(*options, pretrained_window) if self.post_norm else WindowAttention(*options)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-5, weight_attr=start)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout)
        self.drop_path = DropPath(drop_path)
        mask = paddle.to_tensor(shifted_window_mask(size, window, shift)) if shift else None
        self.register_buffer("attn_mask", mask, persistable=False)

    def forward(self, x):
        mixed = self.attend(x)
        if self.post_norm:
            x = residual(x, mixed, drop_path=self.drop_path)
            return residual(x, self.norm2(self.mlp(x)), drop_path=self.drop_path)
        x, normed = residual_norm(x, mixed, self.norm2, drop_path=self.drop_path)
        return residual(x, self.mlp(normed), drop_path=self.drop_path)

    def attend(self, x):
        """Return window attention over the map and the norm before or after it, the cyclic shift done and undone."""
        cut = self.window, self.shift
        parts = windows(x, *cut) if self.post_norm else norm_windows(x, self.norm1, *cut)
        mixed = maps(self.attn(parts, self.attn_mask), *cut, *x.shape[1:3])
        return self.norm1(mixed) if self.post_norm else mixed


class SwinStage(nn.Layer):
    """Patch merging (but not in the first stage), then blocks."""

    def __init__(self, dim: int, is_first: bool, rates: list[float], window: int,
                 pretrained_window: int | None, **block_options):
        super().__init__()
        self.downsample = nn.Identity() if is_first else PatchMerging(dim // 2, pretrained_window is not None)
        self.blocks = nn.Sequential(*(
            SwinBlock(dim, window=window, shift=window // 2 * (index % 2), drop_path=rate,
                      pretrained_window=pretrained_window, **block_options)
            for index, rate in enumerate(rates)
        ))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class SwinTransformer(Model):
    """Swin of `len(depths)` stages; stage s has width `embed_dim * 2**s`. The defaults are Swin-T.

    `v2` makes it a Swin V2; `pretrained_windows` are the windows of its stages in the training that its weights come
    from, where these are others.
    """

    head_names = ("head.fc",)
    dialects = DIALECTS
    not_weights = (r".*\.relative_position_index", r".*\.relative_coords_table", r".*\.attn_mask")

    def __init__(self, image_size: int = 224, patch_size: int = 4, in_channels: int = 3, num_classes: int = 1000,
                 embed_dim: int = 96, depths: tuple[int, ...] = (2, 2, 6, 2),
                 num_heads: tuple[int, ...] = (3, 6, 12, 24), window_size: int = 7, mlp_ratio: float = 4.0,
                 dropout: float = 0.0, attention_dropout: float = 0.0, drop_path: float = 0.0, v2: bool = False,
                 pretrained_windows: tuple[int, ...] = ()):
        super().__init__()
        if len(depths) != len(num_heads):
            raise UserError(f"MODEL.DEPTHS {list(depths)} and MODEL.NUM_HEADS {list(num_heads)} differ in length")
        if pretrained_windows and (not v2 or len(pretrained_windows) != len(depths)):
            given = list(pretrained_windows)
            raise UserError(f"MODEL.PRETRAINED_WINDOWS {given}: one for each stage, with MODEL.V2: true")
        self.num_classes = num_classes
        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        size = self.patch_embed.grid_size
        if size % 2 ** (len(depths) - 1):
            raise UserError(f"DATA.IMAGE_SIZE {image_size} cannot be halved {len(depths) - 1} times after the patches"
                            f" of {patch_size} pixels")
        self.layers = nn.Sequential(*(
            SwinStage(
                embed_dim * 2**stage,
                stage == 0,
                rates,
                window_size,
                (pretrained_windows[stage] if pretrained_windows else 0) if v2 else None,
                num_heads=num_heads[stage],
                size=size // 2**stage,
                mlp_ratio=mlp_ratio,
                dropout=dropout,
                attention_dropout=attention_dropout,
            )
            for stage, rates in enumerate(stage_rates(drop_path, depths))
        ))
        dim = embed_dim * 2 ** (len(depths) - 1)
        self.norm = nn.LayerNorm(dim, epsilon=1e-5)
        self.head = PooledHead(linear(dim, num_classes), axes=(1, 2))

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last stage's features [B, H, W, C]."""
        return self.head(self.norm(x))

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size]."""
        return self.forward_head(self.layers(self.patch_embed(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        return [
            Block("patch_embed", self.patch_embed, ("patch_embed.",)),
            *stage_links("layers", self.layers),
            Block("head", self.forward_head, ("norm.", "head.")),
        ]

    def position_embeddings(self) -> dict[str, RelativePositions]:
        """Return the bias tables of all blocks; Swin V2 has none."""
        return {
            f"{name}.relative_position_bias_table": RelativePositions((layer.window, layer.window))
            for name, layer in self.named_sublayers()
            if isinstance(layer, WindowAttention) and not isinstance(layer, CosineWindowAttention)
        }

    def explanation(self) -> GradCam:
        """Return the last stage's features, [B, H, W, C]."""
        return GradCam(into="head", axes="BHWC")

    def no_weight_decay(self) -> set[str]:
        """Return the names of the position biases and of the factors of cosines, which weight decay leaves alone."""
        exempt = ("relative_position_bias_table", "cpb_mlp", "logit_scale")
        return {name for name, _ in self.named_parameters() if any(part in name for part in exempt)}


build_model = SwinTransformer  # its arguments are the MODEL section of a YAML file
