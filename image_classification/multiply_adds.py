"""How many multiply-adds a model needs for one image, counted in its program: shapes only, nothing is computed."""

import math
from typing import NamedTuple

import paddle
from paddle.static import InputSpec

from .runtime import temporary_home


class MultiplyAdds(NamedTuple):
    """Multiply-adds for one image by what needs them, each counted once.

    `layer_norm` and `batch_norm` are no multiply-adds but the numbers of normalised values. torchvision's figures are
    the sum of the first three; timm's (by fvcore) add 5 for each value of a LayerNorm and 2 for each of a BatchNorm.
    A GroupNorm counts as a LayerNorm. Neither counts biases, activations, softmax, pooling or shortcuts.
    """

    convolutions: int
    linears: int
    attention: int  # the two products of activations with activations: scores and mixture
    layer_norm: int
    batch_norm: int

    @property
    def total(self):
        """Multiply-adds of all products, as torchvision and papers count."""
        return self.convolutions + self.linears + self.attention

    @property
    def total_with_norms(self):
        """As timm counts."""
        return self.total + 5 * self.layer_norm + 2 * self.batch_norm


def count_multiply_adds(build, image_size, channels=3):
    """Return the :class:`MultiplyAdds` of the model that `build()` returns, for one image [channels, size, size].

    The model is built without memory for its parameters.

    Raises:
        NotImplementedError: the model has products in an operator that is not counted here.
    """
    with paddle.LazyGuard():
        model = _Traced(build())
    model.eval()
    spec = InputSpec([1, channels, image_size, image_size], "float32")
    with temporary_home():
        program = paddle.jit.to_static(model, input_spec=[spec], full_graph=True).forward.concrete_program.main_program
    counts = dict.fromkeys(MultiplyAdds._fields, 0)
    activations = set()  # ids of the values that depend on the image; all others are weights or made of weights
    for operator in program.global_block().ops:
        kind = operator.name().removeprefix("pd_op.")
        if kind == "data" or any(value.id in activations for value in operator.operands_source()):
            activations.update(value.id for value in operator.results())
        if kind in _NOT_COUNTED:
            raise NotImplementedError(f"multiply-adds of {kind} are not counted: use matmul or a layer")
        if kind in _COUNTERS:
            field, count = _COUNTERS[kind](operator, activations)
            counts[field] += count
    return MultiplyAdds(**counts)


class _Traced(paddle.nn.Layer):
    """A model whose code Paddle runs as it is instead of rewriting it first, which takes ten times as long."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return _run_unchanged(self.model, images)


@paddle.jit.not_to_static
def _run_unchanged(model, images):
    return model(images)


def _convolution(operator, activations):
    filters = operator.operand_source(1).shape  # [out, in / groups, height, width]
    return "convolutions", math.prod(operator.result(0).shape) * math.prod(filters[1:])


def _matmul(operator, activations):
    left, right = operator.operands_source()
    depth = left.shape[-2] if operator.attrs()["transpose_x"] else left.shape[-1]
    field = "attention" if {left.id, right.id} <= activations else "linears"
    return field, math.prod(operator.result(0).shape) * depth


def _norm(field):
    return lambda operator, activations: (field, math.prod(operator.result(0).shape))


_COUNTERS = {
    "conv2d": _convolution,
    "depthwise_conv2d": _convolution,
    "matmul": _matmul,
    "layer_norm": _norm("layer_norm"),
    "group_norm": _norm("layer_norm"),
    "batch_norm_": _norm("batch_norm"),
}
# Paddle's other operators of products; no model of the zoo has them
_NOT_COUNTED = {
    "addmm", "baddbmm", "bmm", "conv2d_transpose", "conv3d", "depthwise_conv2d_transpose", "dot", "einsum",
    "flash_attn", "memory_efficient_attention", "mv",
}  # fmt: skip
