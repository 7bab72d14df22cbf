"""Products whose operands a policy rounds itself, to a format that is no dtype of the operators: FP8, MX.

A policy that answers with a function is given each operand of each of the three products of a training step, together
with what a quantised format needs to know of it:

    product                  operands                 axis
    forward                  activation, weight       the one that is summed: features, input channels
    gradient of activation   gradient, weight         output features, output channels
    gradient of weight       gradient, activation     rows (the last axis but one), samples of a convolution

What the function returns, in whichever dtype, is what the operator gets; the rounding itself has gradient one. An
operand that enters two products is rounded anew for each, as block formats have to. The gradient passes compute the
operator once more to find its gradient: this is for studying formats, not for speed.
"""

from typing import NamedTuple

import paddle

from . import paddle_names
from .arguments import replace_tensors, scan
from .recorded import PyLayer
from .saved import save, saved


class Operand(NamedTuple):
    """Where a tensor stands in a product.

    role: "activation", "weight" or "gradient"; a factor of matmul or bmm is a weight if it is a parameter.
    index: 0 for the left factor, 1 for the right one; 0 for the gradient.
    layer: the innermost `paddle.nn.Layer` whose call computes the product, None outside of layers.
    axis: the axis of the tensor along which the product sums.
    """

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an operand for
    layer: object
    axis: int


# operator -> summed axes of (left, right) forward, of (right, gradient) for the gradient of left, and of
# (left, gradient) for that of right
_CONVOLUTION = ((1, 1), (0, 1), (0, 0))
_TRANSPOSED = ((1, 0), (1, 1), (0, 0))
_MATMUL = ((-1, -2), (-1, -1), (-2, -2))
AXES = {
    "linear": ((-1, 0), (1, -1), (-2, -2)),
    "matmul": _MATMUL,
    "bmm": _MATMUL,
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "conv3d"), _CONVOLUTION),
    **dict.fromkeys(("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose"), _TRANSPOSED),
}
_CHANNELS_LAST = ("NHWC", "NDHWC")


def compute(name, args, kwargs, cast, run, context):
    """Return the product's result with operands rounded by `cast(tensor, operand)`, forward and backward.

    run: function (args, kwargs) -> result of the operator inside `context()`, a dispatch without policy.

    Raises:
        ValueError: the operator is no product that is known here.
    """
    if name not in AXES:
        raise ValueError(f"a policy answered with a function for {name!r}; it may for {', '.join(AXES)}")
    tensors, _ = scan(args, kwargs)
    return _Product.apply(_Call(name, args, kwargs, tensors, cast, run, context), *tensors)


def _summed_axes(name, args, kwargs):
    """Return the row of AXES for one call: a transposed factor, and images [B, H, W, C], are summed elsewhere."""
    (left, right), (other_right, left_gradient), (other_left, right_gradient) = AXES[name]
    if any(value in _CHANNELS_LAST for value in (*args, *kwargs.values()) if isinstance(value, str)):
        left = left_gradient = -1
    if name == "matmul":
        flags = [*args[2:4], False, False]
        exchanged = {-1: -2, -2: -1}
        if kwargs.get("transpose_x", flags[0]):
            left, other_left = exchanged[left], exchanged[other_left]
        if kwargs.get("transpose_y", flags[1]):
            right, other_right = exchanged[right], exchanged[other_right]
    return (left, right), (other_right, left_gradient), (other_left, right_gradient)


def _role(name, index, tensor):
    if name in ("matmul", "bmm"):
        return "weight" if paddle_names.is_parameter(tensor) else "activation"
    return ("activation", "weight")[index]


class _Call:
    """One call of a product: how to run it on other tensors, and which operand each tensor is."""

    def __init__(self, name, args, kwargs, tensors, cast, run, context):
        self.context = context
        self._args, self._kwargs = args, kwargs
        self._cast, self._run = cast, run
        self._layer = paddle_names.calling_layer()
        self._roles = [_role(name, index, tensor) for index, tensor in enumerate(tensors[:2])]
        self._axes = _summed_axes(name, args, kwargs)

    def factor(self, tensor, index, product):
        """Return factor 0 or 1, rounded for the forward product (0), or for the gradient of factor product - 1."""
        axis = self._axes[product][index if product == 0 else 0]
        return self._rounded(tensor, self._roles[index], index, axis)

    def gradient(self, tensor, product):
        """Return the gradient of the result, rounded for the gradient of factor product - 1."""
        return self._rounded(tensor, "gradient", 0, self._axes[product][1])

    def _rounded(self, tensor, role, index, axis):
        return self._cast(tensor, Operand(role, index, self._layer, max(axis, -tensor.ndim)))

    def run(self, tensors):
        """Return the operator's result for other tensors, without bias where there are two."""
        remaining = iter(tensors)
        return self._run(*replace_tensors(self._args, self._kwargs, lambda _: next(remaining, None)))


class _Product(PyLayer):
    @staticmethod
    def forward(ctx, call, *tensors):
        """Return the operator's result for the rounded factors; a bias is added as it is."""
        ctx.call = call
        save(ctx, *tensors)
        with call.context():
            factors = [call.factor(tensor, index, 0) for index, tensor in enumerate(tensors[:2])]
            bias = [tensor.astype(factors[0].dtype) for tensor in tensors[2:]]
            return call.run([*factors, *bias])

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of each tensor that needs one, in its dtype."""
        tensors = saved(ctx)
        with ctx.call.context():
            return tuple(
                None if tensor.stop_gradient else _gradient(ctx.call, tensors, gradient, index).astype(tensor.dtype)
                for index, tensor in enumerate(tensors)
            )


def _gradient(call, tensors, gradient, index):
    if index > 1:  # the bias of a linear layer
        return gradient.astype("float32").sum(list(range(gradient.ndim - 1)))
    other = call.factor(tensors[1 - index], 1 - index, index + 1).detach()
    # The gradient of a product with respect to a factor does not depend on that factor.
    own = tensors[index].detach().astype(other.dtype)
    own.stop_gradient = False
    with paddle.enable_grad():
        result = call.run([own, other] if index == 0 else [other, own])
    rounded = call.gradient(gradient, index + 1).astype(result.dtype)
    return paddle.grad(result, own, rounded)[0]
