"""MetaFormer: one architecture, whatever mixes the tokens.

PoolFormer (Yu et al. 2022, https://arxiv.org/abs/2111.11418) takes the mean of each place's neighbours. The baselines
of the second paper (Yu et al. 2022, https://arxiv.org/abs/2210.13452) have StarReLU, no biases, learned factors on late
shortcuts: PoolFormer V2, ConvFormer with separable convolutions, CAFormer with attention in its last two stages.

Parameter names are timm's. Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import (
    ZERO,
    Dropout,
    DropPath,
    LayerNorm2D,
    linear,
    normal_conv,
    residual,
    stage_rates,
)
from image_classification.model import Column, Row, StagedModel, Whole
from image_classification.runtime import UserError
from image_classification.transformer import Attention

from .dialects import DIALECTS

HEAD_RATIO = MLP_RATIO = 4
RES_SCALED = 2  # the first stage with factors on its shortcuts, of the second paper


class StarReLU(nn.Layer):
    """s ReLU(x)^2 + b with a learned s and b; s multiplies first, so that only a result can overflow."""

    def __init__(self):
        super().__init__()
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([1], default_initializer=ZERO)

    def forward(self, x):
        x = F.relu(x)
        return x * self.scale.astype(x.dtype) * x + self.bias.astype(x.dtype)


class Scale(nn.Layer):
    """A learned factor for each channel, which lie along the first of the last `axes` axes."""

    def __init__(self, dim: int, value: float, axes: int):
        super().__init__()
        self.shape = [dim] + [1] * (axes - 1)
        self.scale = self.create_parameter([dim], default_initializer=nn.initializer.Constant(value))

    @property
    def factors(self):
        """The factors in the shape that multiplies a feature map."""
        return self.scale.reshape(self.shape)

    def forward(self, x):
        return x * self.factors


class Pooling(nn.Layer):
    """The mean of the 3x3 places around each that are on the map, less itself, [B, C, H, W] -> [B, C, H, W]."""

    def forward(self, x):
        return F.avg_pool2d(x, 3, stride=1, padding=1, exclusive=True) - x


class SepConv(nn.Sequential):
    """An inverted separable convolution (Sandler et al. 2018) with StarReLU and without norms, [B, C, H, W] -> same."""

    def __init__(self, dim: int):
        super().__init__(
            ("pwconv1", normal_conv(dim, 2 * dim, bias=False)),
            ("act1", StarReLU()),
            ("dwconv", normal_conv(2 * dim, 2 * dim, 7, padding=3, groups=2 * dim, bias=False)),
            ("pwconv2", normal_conv(2 * dim, dim, bias=False)),
        )


class UnbiasedAttention(Attention):
    """Self-attention without any bias, [B, N, C] -> [B, N, C]."""

    def __init__(self, dim: int, head_dim: int):
        if head_dim < 1 or dim % head_dim:
            raise UserError(f"MODEL.DIMS: {dim} in a stage of attention is not a multiple of MODEL.HEAD_DIM {head_dim}")
        super().__init__(dim, dim // head_dim, qkv_bias=False)
        self.proj = linear(dim, dim, bias=False)


class MetaFormerMlp(nn.Sequential):
    """Two 1x1 convolutions over [B, C, H, W], or linear layers over [B, N, C], with an activation between them."""

    def __init__(self, dim: int, version: int, is_linear: bool):
        layer = linear if is_linear else normal_conv
        super().__init__(
            ("fc1", layer(dim, MLP_RATIO * dim, bias=version == 1)),
            ("act", nn.GELU() if version == 1 else StarReLU()),
            ("fc2", layer(MLP_RATIO * dim, dim, bias=version == 1)),
        )
        self.is_linear = is_linear

    def tensor_parallel_plan(self):
        """Linear layers are divided by hidden units; one sum after the second."""
        return {"fc1": Column(), "act": Whole(), "fc2": Row()} if self.is_linear else {}


MIXERS = {"pool": lambda dim, _: Pooling(), "conv": lambda dim, _: SepConv(dim), "attention": UnbiasedAttention}


class MetaFormerBlock(nn.Layer):
    """A mixer of tokens and an MLP, each behind a norm and beside a shortcut, [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, dim: int, mixer: str, head_dim: int, version: int, drop_path: float, layer_scale: float | None,
                 res_scale: bool):
        super().__init__()
        self.of_tokens = mixer == "attention"
        axes = 1 if self.of_tokens else 3

        def norm():
            if mixer == "pool":
                return nn.GroupNorm(1, dim, 1e-5 if version == 1 else 1e-6, bias_attr=None if version == 1 else False)
            kind = nn.LayerNorm if self.of_tokens else LayerNorm2D
            return kind(dim, epsilon=1e-6, bias_attr=None if version == 1 else False)

        def scale(value):
            return nn.Identity() if value is None else Scale(dim, value, axes)

        self.norm1 = norm()
        self.token_mixer = MIXERS[mixer](dim, head_dim)
        self.layer_scale1, self.res_scale1 = scale(layer_scale), scale(1.0 if res_scale else None)
        self.norm2 = norm()
        self.mlp = MetaFormerMlp(dim, version, self.of_tokens)
        self.layer_scale2, self.res_scale2 = scale(layer_scale), scale(1.0 if res_scale else None)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        shape = x.shape
        x = x.flatten(2).transpose([0, 2, 1]) if self.of_tokens else x
        scales = [getattr(layer, "factors", None) for layer in (self.layer_scale1, self.layer_scale2)]
        x = residual(self.res_scale1(x), self.token_mixer(self.norm1(x)), scales[0], self.drop_path)
        x = residual(self.res_scale2(x), self.mlp(self.norm2(x)), scales[1], self.drop_path)
        return x.transpose([0, 2, 1]).reshape(shape) if self.of_tokens else x


def embedding_norm(dim: int, version: int) -> tuple[str, nn.Layer]:
    """Return the name and the norm beside a strided convolution, of which the first paper has none."""
    return "norm", LayerNorm2D(dim, epsilon=1e-6, bias_attr=False) if version == 2 else nn.Identity()


class Stage(nn.Sequential):
    """Halving of the image side (but not in the first stage), then blocks."""

    def __init__(self, in_channels: int, dim: int, is_first: bool, version: int, rates: list[float], **options):
        downsample = nn.Identity() if is_first else nn.Sequential(
            embedding_norm(in_channels, version), ("conv", normal_conv(in_channels, dim, 3, 2, 1))
        )
        blocks = nn.Sequential(*(MetaFormerBlock(dim, version=version, drop_path=r, **options) for r in rates))
        super().__init__(("downsample", downsample), ("blocks", blocks))


class MlpHead(nn.Layer):
    """The classifier of the second paper, with squared ReLU, [B, C] -> [B, num_classes]."""

    def __init__(self, dim: int, num_classes: int, dropout: float):
        super().__init__()
        self.fc1 = linear(dim, HEAD_RATIO * dim)
        self.norm = nn.LayerNorm(HEAD_RATIO * dim, epsilon=1e-6)
        self.drop = Dropout(dropout)
        self.fc2 = linear(HEAD_RATIO * dim, num_classes)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.fc2(self.drop(self.norm(x * x)))


class Head(nn.Layer):
    """Norm of the mean, or with `norm_first` mean of the norm, and a classifier, [B, C, H, W] -> [B, num_classes]."""

    def __init__(self, dim: int, num_classes: int, mlp: bool, norm_first: bool, dropout: float):
        super().__init__()
        self.norm_first = norm_first
        self.norm = nn.GroupNorm(1, dim) if norm_first else nn.LayerNorm(dim, epsilon=1e-6)
        self.fc = MlpHead(dim, num_classes, dropout) if mlp else linear(dim, num_classes)

    def forward(self, x):
        return self.fc(self.norm(x).mean(axis=[2, 3]) if self.norm_first else self.norm(x.mean(axis=[2, 3])))


class MetaFormer(StagedModel):
    """MetaFormer whose stage s has `depths[s]` blocks of `dims[s]` channels that `token_mixers[s]` mixes.

    The defaults are CAFormer-S18.

    Args:
        head_dim: channels of each attention head.
        version: 1 for the first paper's blocks (GELU, biases, factors that start at `layer_scale`), 2 for the second's.
        mlp_head: a classifier of two layers, with dropout between them.
        norm_first: the last norm is that of the map, as in the first paper's code; timm normalises the mean instead.
    """

    dialects = DIALECTS

    def __init__(self, depths: tuple[int, ...] = (3, 3, 9, 3), dims: tuple[int, ...] = (64, 128, 320, 512),
                 token_mixers: tuple[str, ...] = ("conv", "conv", "attention", "attention"), version: int = 2,
                 head_dim: int = 32, mlp_head: bool = True, norm_first: bool = False, in_channels: int = 3,
                 num_classes: int = 1000, layer_scale: float | None = None, dropout: float = 0.0,
                 drop_path: float = 0.0):
        super().__init__()
        if not len(depths) == len(dims) == len(token_mixers):
            lists = f"DEPTHS {list(depths)}, DIMS {list(dims)}, TOKEN_MIXERS {list(token_mixers)}"
            raise UserError(f"MODEL.{lists} must have the same length")
        if unknown := [mixer for mixer in token_mixers if mixer not in MIXERS]:
            raise UserError(f"MODEL.TOKEN_MIXERS {unknown[0]!r}: allowed are {', '.join(MIXERS)}")
        if version not in (1, 2):
            raise UserError(f"MODEL.VERSION {version}: allowed are 1, 2")
        self.num_classes = num_classes
        self.head_names = ("head.fc.fc2",) if mlp_head else ("head.fc",)
        stem = normal_conv(in_channels, dims[0], 7, 4, 2)
        self.stem = nn.Sequential(("conv", stem), embedding_norm(dims[0], version))
        self.stages = nn.Sequential(*(
            Stage(dims[max(index - 1, 0)], dims[index], index == 0, version, rates,
                  mixer=token_mixers[index], head_dim=head_dim, layer_scale=layer_scale,
                  res_scale=version == 2 and index >= RES_SCALED)
            for index, rates in enumerate(stage_rates(drop_path, depths))
        ))
        self.head = Head(dims[-1], num_classes, mlp_head, norm_first, dropout)


build_model = MetaFormer  # its arguments are the MODEL section of a YAML file
