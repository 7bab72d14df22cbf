"""Convolutions of bfloat16 images in an evaluation, with what follows them, and what they are exactly."""

import collections
import inspect

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, onednn_convolution_passes, onednn_primitives
from image_classification.half_cpu.scope import active
from image_classification.layers import ConvNorm
from tests.helpers.onednn_runs import BFLOAT16, ROUNDING, by_threads


def layer(inputs, outputs, window=1, stride=1, activation=F.relu):
    """Return a ConvNorm with random parameters and statistics, its filters in bfloat16."""
    paddle.seed(0)
    made = ConvNorm(inputs, outputs, window, stride, activation=activation)
    made.bn.weight.set_value(paddle.randn([outputs]))
    made.bn.bias.set_value(paddle.randn([outputs]))
    made.bn._mean.set_value(paddle.randn([outputs]) * 0.1)
    made.bn._variance.set_value(paddle.rand([outputs]) + 0.5)
    made.conv.to(dtype=BFLOAT16)
    made.eval()
    return made


def pixels(*shape):
    """Return random bfloat16 images of a shape [B, C, H, W], which lie as [B, H, W, C]."""
    batch, channels, height, width = shape
    return paddle.randn([batch, height, width, channels]).astype(BFLOAT16).transpose([0, 3, 1, 2])


def exactly(made, x, residual):
    """Return (what the layer computes in float64, and the sum of the absolute values of what the convolution adds up,
    times the norm's factor)."""
    wide = lambda tensor: tensor.detach().astype("float64")  # noqa: E731
    conv, bn = made.conv, made.bn
    factor = wide(bn.weight) / paddle.sqrt(wide(bn._variance) + bn._epsilon)
    summed, absolute = (
        F.conv2d(change(wide(x)), change(wide(conv.weight)), None, conv._stride, conv._updated_padding)
        for change in (lambda t: t, paddle.abs)
    )
    each = [1, -1, 1, 1]
    y = (summed - wide(bn._mean).reshape(each)) * factor.reshape(each) + wide(bn.bias).reshape(each)
    y = y if residual is None else y + wide(residual)
    y = y if made.activation is None else made.activation(y)
    return y.numpy(), (absolute * factor.abs().reshape(each)).numpy()


def bound_of(exact, absolute, terms):
    """Return how far a result may be from the exact one that :func:`exactly` gives.

    Half a unit in the last place; float32 sums lose 2^-24 of the absolute sum for each term, as a walk of random steps;
    a slope of at most 1.13 (GELU), and 2^-18 of what float32 functions and factors lose.
    """
    bound = ROUNDING[BFLOAT16] / 2 * np.abs(exact) + 1.13 * absolute * 2.0**-24 * terms**0.5
    return bound + 2.0**-18 * np.maximum(np.abs(exact), 1)


def evaluated(made, *inputs):
    with paddle.no_grad(), half_cpu.dispatch(), half_cpu.frozen(made):
        return made(*inputs).astype("float64").numpy()


class Residuals(nn.Layer):
    """Sums of which one may be written over its operand, and one may not: those are the images, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (layer(128, 128) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        y = self.second(self.first(x), x)
        return self.first(self.third(y, y))


def input_channels(monkeypatch, name):
    """Return the list that gets the number of input channels of each convolution by a kernel of this name."""
    library, found = compiled_library.load(), []
    original = getattr(library, name)

    def counted(constants, *arguments):
        found.append(constants[2])
        original(constants, *arguments)

    monkeypatch.setattr(library, name, counted)
    monkeypatch.setattr(onednn_primitives.cache, "_entries", collections.OrderedDict())  # which hold the function
    prepared = inspect.unwrap(onednn_convolution_passes._prepared)  # remembers what it was told
    monkeypatch.setattr(onednn_convolution_passes, "_prepared", prepared)
    return found


def assert_depends_on_nothing_else(made, x):
    """Assert that what a layer makes of five images is the same for several numbers of threads, and of one alone."""
    results = by_threads((1, 2, 5), lambda: (evaluated(made, x), evaluated(made, x[3:4])))
    for five, one in results:
        np.testing.assert_array_equal(five, results[0][0])
        np.testing.assert_array_equal(one, results[0][0][3:4])


def replayed_residuals(calls):
    """Assert that a replayed model has the layers' bits, without these calls once it is recorded; return its calls."""
    model, batches = Residuals(), [pixels(2, 128, 12, 12).contiguous() for _ in range(5)]
    model.eval()
    with paddle.no_grad(), half_cpu.dispatch(), half_cpu.frozen(model):
        expected = [model(x).astype("float64").numpy() for x in batches]
        found, counts = [], []
        for x in batches:
            found.append(half_cpu.replay(model, x).astype("float64").numpy())
            counts.append(len(calls))
        (recorded,) = (each for each in active.frozen.passes.values() if callable(each))
        made = [call.args for call in recorded.played.calls]
    assert counts[1] < counts[2] == counts[4]  # then without layers: what was recorded is believed
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return made
