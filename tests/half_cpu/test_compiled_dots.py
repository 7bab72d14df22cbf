"""Convolutions of single pixels by dot products and what follows: compared with float64, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification.half_cpu import compiled_dots, compiled_library
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.compiled_long_products import multiplies_bfloat16
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.half_convolutions import (
    assert_depends_on_nothing_else,
    bound_of,
    evaluated,
    exactly,
    input_channels,
    layer,
    pixels,
    replayed_residuals,
)
from tests.helpers.onednn_runs import BFLOAT16, ROUNDING

pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="needs AVX512-BF16")
# images, input channels, output channels, height, width, stride: panels of one to four vectors, several of them, every
# number of pixels at a time, tasks of few pixels and of many, strides, pixels that no result reads
SHAPES = [
    (1, 16, 16, 1, 1, 1), (3, 96, 160, 9, 7, 1), (2, 34, 48, 5, 7, 1), (2, 64, 112, 13, 17, 2), (1, 256, 1024, 2, 2, 1),
    (2, 2080, 64, 7, 7, 1), (4, 64, 80, 29, 23, 1), (2, 18, 32, 9, 8, (3, 1)), (5, 32, 256, 40, 30, (1, 2)),
]  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """The numbers of input channels of all convolutions by dot products, which are chosen on any processor."""
    monkeypatch.setattr(compiled_library.load(), "halves_vectors", True)
    monkeypatch.setattr(compiled_library.load(), "has_amx", False)
    return input_channels(monkeypatch, "dot_convolution")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_with_what_follows_is_the_exact_one_rounded_once(shape, calls):
    images, inputs, outputs, height, width, stride = shape
    activations = None, F.relu, F.relu6
    for activation in activations:
        for has_residual in (False, True):
            made, x = layer(inputs, outputs, 1, stride, activation), pixels(images, inputs, height, width)
            residual = pixels(*exactly(made, x, None)[0].shape) if has_residual else None
            found = evaluated(made, x, residual)
            exact, absolute = exactly(made, x, residual)
            assert (np.abs(found - exact) <= bound_of(exact, absolute, inputs)).all(), (activation, has_residual)
    assert calls == [inputs] * 2 * len(activations)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_with_nothing_behind_is_the_exact_one_rounded_once(stride, calls):
    paddle.seed(1)
    made, x = nn.Conv2D(66, 112, 1, stride, bias_attr=False), pixels(2, 66, 15, 13)
    made.to(dtype=BFLOAT16)
    found = evaluated(made, x)
    exact, absolute = (
        F.conv2d(change(x.astype("float64")), change(made.weight.astype("float64")), None, stride).numpy()
        for change in (lambda t: t, paddle.abs)
    )
    bound = ROUNDING[BFLOAT16] / 2 * np.abs(exact) + absolute * 2.0**-24 * 66**0.5  # as `bound_of`
    assert (np.abs(found - exact) <= bound).all()
    assert calls == [66]


def test_numbers_that_are_not_finite_stay_in_their_pixels(calls):
    made, x = layer(96, 80, activation=F.relu), pixels(2, 96, 9, 9)
    clean, touched = evaluated(made, x), np.zeros([2, 9, 9], bool)
    for image, row, column, value in [(0, 2, 3, np.inf), (1, 8, 8, np.nan), (1, 0, 0, -np.inf)]:
        x[image, 95, row, column] = value
        touched[image, row, column] = True
    found = evaluated(made, x)
    touched = np.broadcast_to(touched[:, None], found.shape)
    assert np.isnan(found[1, :, 8, 8]).all()
    assert set(found[0, :, 2, 3]) == set(found[1, :, 0, 0]) == {0.0, np.inf}
    np.testing.assert_array_equal(found[~touched], clean[~touched])
    assert calls == [96, 96]


@pytest.mark.parametrize("shape", [(256, 336, 14, 1), (64, 256, 56, 1), (512, 96, 16, 2), (64, 1024, 3, 1)], ids=str)
def test_convolution_depends_neither_on_threads_nor_on_other_images(shape, calls):
    inputs, outputs, size, stride = shape
    made, x = layer(inputs, outputs, 1, stride), pixels(5, inputs, size, size)
    assert_depends_on_nothing_else(made, x)
    assert len(calls) == 6


def test_replayed_residuals_give_the_layers_bits(calls):
    sums = [(call[5], call[8]) for call in replayed_residuals(calls) if len(call) == 9 and call[8]]
    assert [out == residual for out, residual in sums] == [True, False]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, True),
        ({"inputs": 18, "outputs": 16}, True),
        ({"stride": (2, 2)}, True),
        ({"post_ops": ()}, True),
        ({"activation": onednn.RELU}, True),
        ({"activation": onednn.CLIP}, True),
        ({"activation": onednn.SWISH}, False),
        ({"inputs": 65}, False),
        ({"inputs": 14}, False),
        ({"outputs": 72}, False),
        ({"before": (1, 0)}, False),
        ({"window": (1, 3)}, False),
        ({"changes": True}, False),
        ({"name": "backward_data"}, False),
        ({"dtype": onednn.FLOAT16}, False),
        ({"halves": False}, False),
        ({"amx": True}, False),
    ],
    ids=str,
)
def test_convolutions_that_are_chosen(options, chosen, monkeypatch):
    def pays(
        inputs=64, outputs=256, window=(1, 1), changes=False, name="forward", before=(0, 0), dtype=onednn.BFLOAT16,
        post_ops=(("binary", onednn.BINARY_MUL, None), ("binary", onednn.BINARY_ADD, None)), stride=(1, 1),
        activation=None, halves=True, amx=False,
    ):  # fmt: skip
        monkeypatch.setattr(compiled_library.load(), "halves_vectors", halves)
        monkeypatch.setattr(compiled_library.load(), "has_amx", amx)
        images = [Layout(dtype, (8, channels, 14, 14), None) for channels in (inputs, outputs)]
        filters = Layout(dtype, (outputs, inputs, *window), None)
        post_ops = post_ops if activation is None else (*post_ops, ("eltwise", activation, 0.0, 0.0))
        geometry = stride, (0, 0), before, before
        return compiled_dots.pays(changes, name, images[0], filters, images[1], geometry, post_ops)

    assert pays(**options) is chosen
