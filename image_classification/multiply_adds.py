"""How many multiply-adds a model needs for one image, counted in its program: shapes only, nothing is computed."""

import math
from typing import NamedTuple

import paddle
from paddle.static import InputSpec


class MultiplyAdds(NamedTuple):
    """Multiply-adds for one image by what needs them, each counted once.

    `layer_norm` and `batch_norm` are no multiply-adds but the numbers of normalised values. torchvision's figures are
    the sum of the first three; timm's (by fvcore) add 5 for each value of a LayerNorm and 2 for each of a BatchNorm.
    Neither counts biases, activations, softmax, pooling or shortcuts.
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
    """
    with paddle.LazyGuard():
        model = _Traced(build())
    model.eval()
    spec = InputSpec([1, channels, image_size, image_size], "float32")
    program = paddle.jit.to_static(model, input_spec=[spec], full_graph=True).forward.concrete_program.main_program
    counts = dict.fromkeys(MultiplyAdds._fields, 0)
    for operator in program.global_block().ops:
        kind = operator.name().removeprefix("pd_op.")
        if kind in _COUNTERS:
            field, count = _COUNTERS[kind](operator)
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


def _convolution(operator):
    filters = operator.operand_source(1).shape  # [out, in / groups, height, width]
    return "convolutions", math.prod(operator.result(0).shape) * math.prod(filters[1:])


def _matmul(operator):
    left, right = operator.operand_source(0).shape, operator.operand_source(1).shape
    depth = left[-2] if operator.attrs()["transpose_x"] else left[-1]
    # a linear layer's weight is a matrix; both sides of attention have batch and heads
    return "linears" if len(right) == 2 else "attention", math.prod(operator.result(0).shape) * depth


def _norm(field):
    return lambda operator: (field, math.prod(operator.result(0).shape))


_COUNTERS = {
    "conv2d": _convolution,
    "depthwise_conv2d": _convolution,
    "matmul": _matmul,
    "layer_norm": _norm("layer_norm"),
    "batch_norm_": _norm("batch_norm"),
}
