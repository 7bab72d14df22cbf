"""Layers that two or more models share.

Shapes use: B batch, N tokens, C channels, h heads, d = C // h.
Nothing here knows of number formats: a layer computes in the dtype of what it is given.
"""

import functools
import math
from collections.abc import Callable, Sequence

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.half_cpu import composite, is_plain
from image_classification.model import Column, Draw, Row
from image_classification.runtime import UserError

# timm's initialisation of every transformer weight; linear biases start at zero
TRUNC_NORMAL = nn.initializer.TruncatedNormal(std=0.02)
ZERO = nn.initializer.Constant(0.0)


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer with the usual transformer initialisation (normal 0.02, zero bias)."""
    return nn.Linear(in_features, out_features, weight_attr=TRUNC_NORMAL, bias_attr=ZERO if bias else False)


def normal_conv(in_channels: int, out_channels: int, kernel_size: int = 1, stride: int = 1, padding: int = 0,
                groups: int = 1, bias: bool = True) -> nn.Conv2D:
    """Return a convolution with the initialisation of :func:`linear`."""
    return nn.Conv2D(in_channels, out_channels, kernel_size, stride, padding, groups=groups,
                     weight_attr=TRUNC_NORMAL, bias_attr=ZERO if bias else False)  # fmt: skip


def torch_uniform(fan_in: int, bias: bool = True) -> dict:
    """Return PyTorch's default initialisation of a layer with `fan_in` inputs, uniform in +-1 / sqrt(fan_in)."""
    uniform = nn.initializer.Uniform(-(fan_in**-0.5), fan_in**-0.5)
    return {"weight_attr": uniform, "bias_attr": uniform if bias else False}


def drop_path_rates(drop_path: float, depth: int) -> list[float]:
    """Return one stochastic-depth rate per block, from 0 at the first to `drop_path` at the last."""
    return [drop_path * index / max(depth - 1, 1) for index in range(depth)]


def stage_rates(drop_path: float, depths: Sequence[int]) -> list[list[float]]:
    """Return those rates for each stage of `depths[s]` blocks."""
    rates = iter(drop_path_rates(drop_path, sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]


class Dropout(nn.Layer):
    """Dropout that costs nothing when it has nothing to do: Paddle runs the operator (and a copy) even for p = 0."""

    axis: int | None = None  # of the draws; None: one for each number

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0 <= p <= 1:
            raise UserError(f"MODEL: a rate of dropout or of dropped paths is {p}, expected a number from 0 to 1")
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        return F.dropout(x, self.p, axis=self.axis)

    def extra_repr(self):
        return f"p={self.p}"


class DropPath(Dropout):
    """Stochastic depth (Huang et al. 2016): a sample's residual branch is zeroed with probability p, else scaled up."""

    axis = 0  # one draw per sample, broadcast over the rest

    def forward(self, x):
        if self.p and self.training and x.stop_gradient and math.prod(x.shape) == x.shape[0]:
            return F.dropout(x, self.p)  # a kernel asks for the factors: the same draws by one operator, not eight
        return super().forward(x)


@composite("residual", casts_as="multiply add")
def residual(x, branch, scale=None, drop_path=None):
    """Return `x + drop_path(branch * scale)`; `drop_path` multiplies each sample by a number of its own choice."""
    branch = branch if scale is None else branch * scale
    return x + (branch if drop_path is None else drop_path(branch))


@composite("scale_shift", casts_as="multiply add")
def scale_shift(x, scale, shift):
    """Return `x * scale + shift`."""
    return x * scale + shift


@composite("product_norm", casts_as="layer_norm", result_as="linear")
def product_norm(x, norm: nn.Layer):
    """Return `norm(x)`, which linear layers alone read: where they round it, it is rounded as it is written."""
    return norm(x)


@composite("residual_norm", casts_as="multiply add layer_norm", result_as="linear")
def residual_norm(x, branch, norm: nn.Layer, scale=None, drop_path=None):
    """Return (`residual(x, branch, scale, drop_path)`, its `product_norm`)."""
    x = residual(x, branch, scale, drop_path)
    return x, product_norm(x, norm)


@composite("rearrange")
def rearrange(x, split: list[int], order: list[int], shape: list[int]):
    """Return `x` read as shape `split`, with its axes in `order`, read as `shape`."""
    return x.reshape(split).transpose(order).reshape(shape)


class LayerNorm2D(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x):
        return super().forward(x.transpose([0, 2, 3, 1])).transpose([0, 3, 1, 2])


class ConvNorm(nn.Layer):
    """A convolution without bias, BatchNorm and an activation, [B, C, H, W] -> [B, C', H', W'], with timm's names.

    Args:
        activation: a function, None for none.
        norm_start: first value of the BatchNorm's weight; 0 for a residual branch that starts closed.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1,
                 activation: Callable | None = F.relu, norm_start: float = 1.0, epsilon: float = 1e-5,
                 padding: int | list[int] | str | None = None):
        super().__init__()
        self.conv = conv(in_channels, out_channels, kernel_size, stride, groups, padding=padding)
        start = nn.initializer.Constant(norm_start)
        self.bn = nn.BatchNorm2D(out_channels, epsilon=epsilon, weight_attr=start)
        self.activation = activation

    def forward(self, x, residual=None):
        """Return activation(norm(convolution) + residual)."""
        return conv_norm(x, self.conv, self.bn, self.activation, residual)


def conv_norm(x, conv: nn.Layer, norm: nn.Layer, activation: Callable | None = None, residual=None):
    """Return activation(norm(conv(x)) + residual), [B, C, H, W] -> [B, C', H', W']."""
    return _conv_norm(x, getattr(conv, "weight", None), conv, norm, activation, residual)


# The weight stands here for a policy's casts.
@composite("conv_norm", casts_as="conv2d", then=("depthwise_conv2d", "batch_norm", "add"))
def _conv_norm(x, weight, conv, norm, activation, residual):
    return norm_activation(conv(x), norm, activation, residual)


@composite("norm_activation", casts_as="batch_norm", then=("add",))
def norm_activation(x, norm: nn.Layer, activation: Callable | None = None, residual=None):
    """Return activation(norm(x) + residual), [B, C, H, W] -> [B, C, H, W]."""
    x = norm(x)
    if residual is not None:
        x = x + residual
    return x if activation is None else activation(x)


class ConvSequence(nn.Sequential):
    """A sequence that offers a convolution, the BatchNorm after it and the ReLU after that to one kernel."""

    def forward(self, x):
        layers = list(self)
        while layers:
            first, *layers = layers
            if not isinstance(first, nn.Conv2D) or not layers or not isinstance(layers[0], nn.BatchNorm2D):
                x = first(x)
                continue
            norm, *layers = layers
            if layers and is_plain(layers[0], nn.ReLU):
                x, layers = conv_norm(x, first, norm, F.relu), layers[1:]
            else:
                x = conv_norm(x, first, norm)
        return x


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1, bias: bool = False,
         padding: int | list[int] | str | None = None) -> nn.Conv2D:
    """Return a convolution, normal over its fan-out (He et al. 2015), that keeps the image size at stride 1.

    Raises:
        UserError: a width or a ratio of the model leaves it no channel.
    """
    if min(in_channels, out_channels) < 1:
        raise UserError(f"MODEL: a convolution would have {in_channels} channels in and {out_channels} out")
    fan_out = out_channels * kernel_size**2 // groups
    return nn.Conv2D(
        in_channels,
        out_channels,
        kernel_size,
        stride,
        padding=kernel_size // 2 if padding is None else padding,
        groups=groups,
        weight_attr=nn.initializer.Normal(std=(2.0 / fan_out) ** 0.5),
        bias_attr=ZERO if bias else False,
    )


class PooledHead(nn.Layer):
    """The classifier `fc` of the mean over a map's places, [B, C, H, W] or, with `axes` (1, 2), [B, H, W, C]."""

    def __init__(self, fc: nn.Layer, axes: tuple[int, int] = (2, 3), dropout: float = 0.0):
        super().__init__()
        self.axes = list(axes)
        self.drop = Dropout(dropout)
        self.fc = fc

    def forward(self, x):
        return self.fc(self.drop(x.mean(axis=self.axes)))


class SqueezeExcite(nn.Layer):
    """A factor in (0, 1) for each channel, from the means of all (Hu et al. 2018), [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels: int, squeezed: int, activation: Callable):
        super().__init__()
        self.activation = activation
        self.fc1 = conv(channels, squeezed, 1, bias=True)
        self.fc2 = conv(squeezed, channels, 1, bias=True)

    def forward(self, x):
        return x * F.sigmoid(self.fc2(self.activation(self.fc1(x.mean(axis=[2, 3], keepdim=True)))))


def check_image_size(images, image_size: int):
    """Raise UserError unless `images`, [B, C, H, W], have `image_size` pixels on both sides."""
    height, width = images.shape[2:]
    if (height, width) != (image_size, image_size):
        raise UserError(f"image is {height}x{width} pixels, the model was built for DATA.IMAGE_SIZE {image_size}")


class PatchEmbed(nn.Layer):
    """Image to tokens, [B, in_channels, H, W] -> [B, N, C], by one strided convolution."""

    def __init__(self, image_size: int, patch_size: int, in_channels: int, embed_dim: int, bias: bool = True):
        super().__init__()
        if patch_size < 1 or image_size % patch_size:
            raise UserError(f"DATA.IMAGE_SIZE {image_size} is not a multiple of MODEL.PATCH_SIZE {patch_size}")
        self.image_size = image_size
        self.grid_size = image_size // patch_size
        self.grid = (self.grid_size, self.grid_size)
        self.num_patches = self.grid_size**2
        self.proj = normal_conv(in_channels, embed_dim, patch_size, patch_size, bias=bias)

    def forward(self, images):
        check_image_size(images, self.image_size)
        # [B, C, H', W'] -> [B, H', W', C], how a CPU's convolution leaves it in memory -> [B, N, C]
        return self.proj(images).transpose([0, 2, 3, 1]).flatten(1, 2)


@composite("attention", casts_as="matmul")
def attention(qkv, num_heads: int, scale: float, dropout=None, bias=None):
    """Return softmax(scale q k^T + bias) v, [B, N, C], for the packed projection `qkv`, [B, N, 3C] = [B, N, 3, h, d].

    C is a tensor-parallel process's share of the channels. `dropout` is applied to the attention weights, [B, h, N, N].
    `bias`, [W, h, N, N], holds one bias for each of W samples in turn; B is a multiple of W.
    """
    batch, tokens, width = qkv.shape
    # Read as [B, N, 3h, d]: one 4-D transpose for the three of them; a 5-D transpose, or slices with their scattered
    # gradients, take up to 1.5 times as long on a CPU.
    qkv = qkv.reshape([batch, tokens, 3 * num_heads, width // (3 * num_heads)]).transpose([0, 2, 1, 3])
    query, key, value = paddle.split(qkv, 3, axis=1)  # 3 x [B, h, N, d]
    # scaling the query (N x d) is cheaper than the scores (N x N) and keeps float16 scores small
    scores = paddle.matmul(query * scale, key, transpose_y=True)  # [B, h, N, N]
    if bias is not None:
        scores = (scores.reshape([-1, *bias.shape]) + bias).reshape(scores.shape)
    weights = F.softmax(scores, axis=-1)
    if dropout is not None:
        weights = dropout(weights)
    return paddle.matmul(weights, value).transpose([0, 2, 1, 3]).reshape([batch, tokens, width // 3])


# With gradients one by one: the backward pass needs what goes into GELU.
@composite("linear_gelu", casts_as="linear", inference_only=True)
def linear_gelu(layer, x):
    """Return the exact (erf) GELU of what a linear layer returns for `x`."""
    return F.gelu(layer(x))


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate=True),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),  # OpenAI's CLIP
    "silu": F.silu,
}


class Mlp(nn.Layer):
    """Two linear layers with an activation of `ACTIVATIONS` between them, by default the exact (erf) GELU."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0, activation: str = "gelu"):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"MODEL.ACTIVATION {activation!r}: allowed are {', '.join(ACTIVATIONS)}")
        self.activation = activation
        self.fc1 = linear(dim, hidden_dim)
        self.drop1 = Dropout(dropout)
        self.fc2 = linear(hidden_dim, dim)
        self.drop2 = Dropout(dropout)

    def forward(self, x):
        x = linear_gelu(self.fc1, x) if self.activation == "gelu" else ACTIVATIONS[self.activation](self.fc1(x))
        return self.drop2(self.fc2(self.drop1(x)))

    def tensor_parallel_plan(self):
        """Divided by hidden units; one sum after the second layer."""
        return {"fc1": Column(), "drop1": Draw(), "fc2": Row()}
