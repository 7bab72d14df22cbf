"""The blocks of MobileNetV4 (Qin et al. 2024, https://arxiv.org/abs/2404.10518), with timm's parameter names.

Shapes use: B batch, C channels, h heads, d channels of a head, N and M positions of queries and of keys.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.inverted_residual import Residual, Style, round_channels


class LayerScale(nn.Layer):
    """A learned factor for each channel of [B, C, H, W] (Touvron et al. 2021, CaiT)."""

    def __init__(self, channels: int, value: float):
        super().__init__()
        self.gamma = self.create_parameter([channels], default_initializer=nn.initializer.Constant(value))

    def forward(self, x):
        return x * self.gamma.reshape([1, -1, 1, 1])


def layer_scale(channels: int, style: Style) -> nn.Layer:
    """Return the factor of a block's residual branch."""
    return nn.Identity() if style.layer_scale is None else LayerScale(channels, style.layer_scale)


class UniversalInvertedResidual(Residual):
    """An inverted residual with a depthwise convolution before it, within it, both or neither.

    A `start_kernel_size` or `kernel_size` of 0 is none: so these are ConvNeXt's block, the inverted residual, one with
    an extra depthwise convolution, and an MLP.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, expansion: float, start_kernel_size: int = 0, skip: bool = True):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        wide = round_channels(in_channels * expansion)
        self.dw_start = self.dw_mid = nn.Identity()
        if start_kernel_size:
            first = 1 if kernel_size else stride
            self.dw_start = style.conv_norm(in_channels, in_channels, start_kernel_size, first, in_channels, False)
        self.pw_exp = style.conv_norm(in_channels, wide, 1)
        if kernel_size:
            self.dw_mid = style.conv_norm(wide, wide, kernel_size, stride, wide)
        self.pw_proj = style.conv_norm(wide, out_channels, 1, activated=False)
        self.layer_scale = layer_scale(out_channels, style)

    def branch(self, x):
        return self.layer_scale(self.pw_proj(self.dw_mid(self.pw_exp(self.dw_start(x)))))


class MultiQueryAttention(nn.Layer):
    """Attention of `num_heads` queries at every position to one key and value at each (Shazeer 2019), [B, C, H, W].

    With a `key_value_stride` above 1 keys and values are those of a smaller map.
    """

    def __init__(self, in_channels: int, out_channels: int, style: Style, kernel_size: int, num_heads: int,
                 head_dim: int, key_value_stride: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.query = nn.Sequential(("proj", style.conv(in_channels, num_heads * head_dim, 1)))

        def smaller():
            if key_value_stride == 1:
                return []
            down = style.conv(in_channels, in_channels, kernel_size, key_value_stride, groups=in_channels)
            return [("down_conv", down), ("norm", style.norm(in_channels))]

        self.key = nn.Sequential(*smaller(), ("proj", style.conv(in_channels, head_dim, 1)))
        self.value = nn.Sequential(*smaller(), ("proj", style.conv(in_channels, head_dim, 1)))
        self.output = nn.Sequential(("proj", style.conv(num_heads * head_dim, out_channels, 1)))

    def forward(self, x):
        height, width = x.shape[2:]
        query = self.query(x).reshape([0, self.num_heads, self.head_dim, -1])  # [B, h, d, N]
        query = query.transpose([0, 1, 3, 2]).flatten(1, 2)  # [B, hN, d]: all heads have the same keys
        # scaling the query keeps float16 scores small
        scores = paddle.matmul(query * self.head_dim**-0.5, self.key(x).flatten(2))  # [B, hN, M]
        mixed = paddle.matmul(F.softmax(scores, axis=-1), self.value(x).flatten(2), transpose_y=True)  # [B, hN, d]
        mixed = mixed.reshape([0, self.num_heads, -1, self.head_dim]).transpose([0, 1, 3, 2])  # [B, h, d, N]
        return self.output(mixed.reshape([0, -1, height, width]))


class MobileAttention(Residual):
    """BatchNorm and multi-query attention with a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: Style, drop_path: float, *,
                 kernel_size: int, num_heads: int, head_dim: int, key_value_stride: int = 1, skip: bool = True):
        super().__init__(skip and stride == 1 and in_channels == out_channels, drop_path)
        self.norm = style.norm(in_channels)
        self.attn = MultiQueryAttention(
            in_channels, out_channels, style, kernel_size, num_heads, head_dim, key_value_stride
        )
        self.layer_scale = layer_scale(out_channels, style)

    def branch(self, x):
        return self.layer_scale(self.attn(self.norm(x)))


BLOCKS_V4 = {"uir": UniversalInvertedResidual, "mqa": MobileAttention}
