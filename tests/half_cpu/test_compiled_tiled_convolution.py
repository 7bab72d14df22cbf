"""Convolutions of single pixels by AMX with what follows them: compared with float64, and when they are chosen."""

import ctypes
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, compiled_tiled_convolution, compiled_tiles
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Layout
from image_classification.half_cpu.scope import active
from image_classification.layers import ConvNorm
from tests.helpers.onednn_runs import BFLOAT16, ROUNDING

needs_tiles = pytest.mark.skipif(not compiled_tiles.has_tiles(), reason="needs AMX")
ACTIVATIONS = (None, F.relu, F.relu6, F.hardswish, F.silu, F.gelu)
# images, input channels, output channels, height, width, stride: one panel and several, parts of one, both strides
SHAPES = [
    (1, 32, 32, 6, 6, 1), (3, 96, 160, 9, 7, 1), (2, 1312, 64, 7, 7, 1), (2, 64, 96, 13, 17, 2),
    (5, 256, 1024, 14, 14, 1),
]  # fmt: skip


def layer(inputs, outputs, stride=1, activation=F.relu):
    """Return a ConvNorm of single pixels with random parameters and statistics, its filters in bfloat16."""
    paddle.seed(0)
    made = ConvNorm(inputs, outputs, 1, stride, activation=activation)
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
        F.conv2d(change(wide(x)), change(wide(conv.weight)), None, conv._stride) for change in (lambda t: t, paddle.abs)
    )
    each = [1, -1, 1, 1]
    y = (summed - wide(bn._mean).reshape(each)) * factor.reshape(each) + wide(bn.bias).reshape(each)
    y = y if residual is None else y + wide(residual)
    y = y if made.activation is None else made.activation(y)
    return y.numpy(), (absolute * factor.abs().reshape(each)).numpy()


@pytest.fixture
def calls(monkeypatch):
    """The numbers of terms of all convolutions by AMX."""
    library, found = compiled_library.load(), []
    original = library.tiled_convolution

    def counted(constants, *arguments):
        found.append(constants[2])
        original(constants, *arguments)

    monkeypatch.setattr(library, "tiled_convolution", counted)
    return found


def evaluated(made, *inputs):
    with paddle.no_grad(), half_cpu.dispatch(), half_cpu.frozen(made):
        return made(*inputs).astype("float64").numpy()


@needs_tiles
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_with_what_follows_is_the_exact_one_rounded_once(shape, calls):
    images, inputs, outputs, height, width, stride = shape
    for activation in ACTIVATIONS:
        for has_residual in (False, True):
            made, x = layer(inputs, outputs, stride, activation), pixels(images, inputs, height, width)
            result = images, outputs, -(-height // stride), -(-width // stride)
            residual = pixels(*result) if has_residual else None
            found = evaluated(made, x, residual)
            exact, absolute = exactly(made, x, residual)
            # Half a unit in the last place; float32 sums lose 2^-24 of the absolute sum for each term, as a walk of
            # random steps; a slope of at most 1.13 (GELU), and 2^-18 of what float32 functions and factors lose.
            bound = ROUNDING[BFLOAT16] / 2 * np.abs(exact) + 1.13 * absolute * 2.0**-24 * inputs**0.5
            bound = bound + 2.0**-18 * np.maximum(np.abs(exact), 1)
            assert (np.abs(found - exact) <= bound).all(), (activation, has_residual)
    assert calls == [inputs] * 2 * len(ACTIVATIONS)


@needs_tiles
def test_numbers_that_are_not_finite_stay_in_their_pixels(calls):
    made, x = layer(96, 64, activation=None), pixels(2, 96, 7, 7)
    clean = evaluated(made, x)
    for place, value in (((0, 5, 2, 3), np.inf), ((1, 95, 6, 6), np.nan)):
        x[place] = value
    found = evaluated(made, x)
    touched = np.zeros([2, 7, 7], bool)
    touched[0, 2, 3] = touched[1, 6, 6] = True
    touched = np.broadcast_to(touched[:, None], found.shape)
    assert not np.isfinite(found[touched]).any() and np.isnan(found[1, :, 6, 6]).all()
    np.testing.assert_array_equal(found[~touched], clean[~touched])
    assert calls == [96, 96]


@needs_tiles
@pytest.mark.parametrize("shape", [(256, 320, 14, 1), (2080, 64, 8, 1), (512, 96, 16, 2)], ids=str)
def test_convolution_depends_neither_on_threads_nor_on_other_images(shape, calls):
    inputs, outputs, size, stride = shape
    made, x = layer(inputs, outputs, stride), pixels(5, inputs, size, size)
    openmp = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libiomp5.so"))
    threads, results = openmp.omp_get_max_threads(), []
    for count in (1, 2, 5):
        openmp.omp_set_num_threads(count)
        results.append(evaluated(made, x))
    openmp.omp_set_num_threads(threads)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(evaluated(made, x[3:4]), results[0][3:4])
    assert len(calls) == 4


class Residuals(nn.Layer):
    """Sums of which one may be written over its operand, and one may not: those are the images, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (layer(128, 128) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        y = self.second(self.first(x), x)
        return self.first(self.third(y, y))


@needs_tiles
def test_replayed_residuals_give_the_layers_bits(calls):
    model, batches = Residuals(), [pixels(2, 128, 12, 12).contiguous() for _ in range(5)]
    model.eval()
    with paddle.no_grad(), half_cpu.dispatch(), half_cpu.frozen(model):
        expected = [model(x).astype("float64").numpy() for x in batches]
        found, counts = [], []
        for x in batches:
            found.append(half_cpu.replay(model, x).astype("float64").numpy())
            counts.append(len(calls))
        (recorded,) = (each for each in active.frozen.passes.values() if callable(each))
        convolutions = [call.args for call in recorded._calls if len(call.args) == 8]
    assert counts[1] < counts[2] == counts[4]  # then without layers: what was recorded is believed
    sums = [(out, residual) for *_, out, _, _, residual in convolutions if residual]
    assert [out == residual for out, residual in sums] == [True, False]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_convolutions_that_are_chosen(monkeypatch):
    monkeypatch.setattr(compiled_tiled_convolution, "has_tiles", lambda: True)
    norm = (("binary", onednn.BINARY_MUL, None), ("binary", onednn.BINARY_ADD, None))

    def chosen(
        inputs, outputs, size, batch=1, window=(1, 1), changes=False, name="forward", before=(0, 0),
        dtype=onednn.BFLOAT16, post_ops=norm, stride=(1, 1),
    ):  # fmt: skip
        images = [Layout(dtype, (batch, channels, size, size), None) for channels in (inputs, outputs)]
        filters = Layout(dtype, (outputs, inputs, *window), None)
        geometry = stride, (0, 0), before, before
        return compiled_tiled_convolution.pays(changes, name, images[0], filters, images[1], geometry, post_ops)

    assert chosen(64, 256, 56) and chosen(2048, 512, 7) and chosen(256, 512, 28, stride=(2, 2)) and chosen(32, 32, 6)
    assert chosen(64, 256, 5, batch=8) == chosen(64, 256, 5) == False  # noqa: E712
    assert not chosen(48, 256, 56) and not chosen(64, 24, 56) and not chosen(8192, 64, 7)
    assert not chosen(64, 256, 56, window=(3, 3)) and not chosen(64, 256, 56, changes=True)
    assert not chosen(64, 256, 56, name="backward_data") and not chosen(64, 256, 56, before=(1, 1))
    assert not chosen(64, 256, 56, dtype=onednn.FLOAT16) and not chosen(64, 256, 56, post_ops=())
    monkeypatch.setattr(compiled_tiled_convolution, "has_tiles", lambda: False)
    assert not chosen(64, 256, 56)
