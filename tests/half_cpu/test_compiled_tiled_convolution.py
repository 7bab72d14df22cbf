"""Convolutions by AMX with what follows them: compared with float64, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.amp import build_precision
from image_classification.half_cpu import compiled_tiled_convolution, compiled_tiles
from image_classification.half_cpu import onednn_library as onednn
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

needs_tiles = pytest.mark.skipif(not compiled_tiles.has_tiles(), reason="needs AMX")
ACTIVATIONS = (None, F.relu, F.relu6, F.hardswish, F.silu, F.gelu)
# images, input channels, output channels, height, width, window, stride: one panel and several, parts of one, strides,
# pixels that no window reads, two bands, filters that are divided, columns that count as channels
SHAPES = [
    (1, 32, 32, 6, 6, 1, 1), (3, 96, 160, 9, 7, 1, 1), (2, 1312, 64, 7, 7, 1, 1), (2, 64, 96, 13, 17, 1, 2),
    (5, 256, 1024, 14, 14, 1, 1), (2, 64, 96, 9, 11, 3, 1), (1, 32, 32, 4, 5, 3, 1), (2, 96, 32, 13, 10, 3, 2),
    (2, 32, 64, 17, 12, 5, 3), (1, 64, 32, 12, 13, 2, 2), (1, 32, 32, 19, 19, 2, 4), (2, 64, 32, 60, 80, 3, 1),
    (3, 544, 256, 7, 7, 3, 1), (2, 3, 64, 23, 30, 7, 2), (1, 8, 32, 9, 9, 3, 1), (1, 3, 32, 250, 255, 7, 2),
]  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """The numbers of input channels of all convolutions by AMX."""
    return input_channels(monkeypatch, "tiled_convolution")


@needs_tiles
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_with_what_follows_is_the_exact_one_rounded_once(shape, calls):
    images, inputs, outputs, height, width, window, stride = shape
    terms = inputs * window**2
    for activation in ACTIVATIONS:
        for has_residual in (False, True):
            made, x = layer(inputs, outputs, window, stride, activation), pixels(images, inputs, height, width)
            residual = pixels(*exactly(made, x, None)[0].shape) if has_residual else None
            found = evaluated(made, x, residual)
            exact, absolute = exactly(made, x, residual)
            assert (np.abs(found - exact) <= bound_of(exact, absolute, terms)).all(), (activation, has_residual)
    assert calls == [inputs] * 2 * len(ACTIVATIONS)


@needs_tiles
@pytest.mark.parametrize(("inputs", "window"), [(96, 1), (96, 3), (3, 7)], ids=str)
def test_numbers_that_are_not_finite_stay_in_their_windows(inputs, window, calls):
    made, x, reach = layer(inputs, 64, window, activation=None), pixels(2, inputs, 17, 17), window // 2
    clean = evaluated(made, x)
    places = [(0, 2, 3, np.inf), (1, 16, 16, np.nan), (1, 0, 0, -np.inf)]
    touched = np.zeros([2, 17, 17], bool)
    for image, row, column, value in places:
        x[image, inputs - 1, row, column] = value
        rows, columns = (slice(max(0, at - reach), at + reach + 1) for at in (row, column))
        touched[image, rows, columns] = True
    found = evaluated(made, x)
    touched = np.broadcast_to(touched[:, None], found.shape)
    assert not np.isfinite(found[touched]).any() and np.isnan(found[1, :, 16, 16]).all()
    np.testing.assert_array_equal(found[~touched], clean[~touched])
    assert calls == [inputs, inputs]


@needs_tiles
@pytest.mark.parametrize(
    "shape",
    [(256, 320, 14, 1, 1), (2080, 64, 8, 1, 1), (512, 96, 16, 1, 2), (64, 64, 56, 3, 1), (512, 256, 7, 3, 1)],
    ids=str,
)
def test_convolution_depends_neither_on_threads_nor_on_other_images(shape, calls):
    inputs, outputs, size, window, stride = shape
    made, x = layer(inputs, outputs, window, stride), pixels(5, inputs, size, size)
    assert_depends_on_nothing_else(made, x)
    assert len(calls) == 6


@needs_tiles
@pytest.mark.parametrize("padding", [0, [2, 1], [0, 3, 2, 1], "SAME"], ids=str)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), ([2, 1], 1), (2, 3), ([1, 3], [2, 1])], ids=str)
@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
def test_convolution_with_nothing_behind_is_the_exact_one_rounded_once(padding, stride, dilation, weights, calls):
    paddle.seed(1)
    made = nn.Conv2D(64, 32, [3, 2], stride, padding, dilation, bias_attr=False)
    x = pixels(2, 64, 15, 13)
    rounded = made.weight.astype(BFLOAT16)
    if weights == "bfloat16":
        made.to(dtype=BFLOAT16)
        found = evaluated(made, x)
    else:  # which a policy casts
        with paddle.no_grad(), half_cpu.frozen(made), build_precision("auto", "bfloat16").forward_context():
            found = made(x).astype("float64").numpy()
    arguments = None, stride, padding, dilation
    exact, absolute = (
        F.conv2d(change(x.astype("float64")), change(rounded.astype("float64")), *arguments).numpy()
        for change in (lambda t: t, paddle.abs)
    )
    bound = ROUNDING[BFLOAT16] / 2 * np.abs(exact) + absolute * 2.0**-24 * 384**0.5  # as above
    assert (np.abs(found - exact) <= bound).all()
    assert calls == [64]


@needs_tiles
def test_replayed_residuals_give_the_layers_bits(calls):
    sums = [(call[4], call[7]) for call in replayed_residuals(calls) if len(call) == 8 and call[7]]
    assert [out == residual for out, residual in sums] == [True, False]


def test_convolutions_that_are_chosen(monkeypatch):
    monkeypatch.setattr(compiled_tiled_convolution, "has_tiles", lambda: True)
    norm = (("binary", onednn.BINARY_MUL, None), ("binary", onednn.BINARY_ADD, None))

    def chosen(
        inputs, outputs, size, batch=1, window=(1, 1), changes=False, name="forward", before=(0, 0),
        dtype=onednn.BFLOAT16, post_ops=norm, stride=(1, 1), gap=0,
    ):  # fmt: skip
        images = [Layout(dtype, (batch, channels, size, size), None) for channels in (inputs, outputs)]
        filters = Layout(dtype, (outputs, inputs, *window), None)
        geometry = stride, (gap, gap), before, before
        return compiled_tiled_convolution.pays(changes, name, images[0], filters, images[1], geometry, post_ops)

    assert chosen(64, 256, 56) and chosen(2048, 512, 7) and chosen(256, 512, 28, stride=(2, 2)) and chosen(32, 32, 6)
    assert chosen(64, 256, 5, batch=8) == chosen(64, 256, 5) == False  # noqa: E712
    assert not chosen(48, 256, 56) and not chosen(64, 24, 56) and not chosen(8192, 64, 7)
    assert not chosen(64, 256, 56, changes=True) and not chosen(64, 256, 56, name="backward_data")
    assert not chosen(64, 256, 56, before=(1, 1)) and not chosen(64, 256, 56, dtype=onednn.FLOAT16)
    assert not chosen(64, 256, 56, post_ops=())
    assert chosen(64, 256, 4, window=(3, 3), before=(1, 1)) and not chosen(64, 256, 3, batch=8, window=(3, 3))
    assert chosen(64, 64, 56, window=(5, 1), post_ops=()) and not chosen(64, 64, 56, window=(3, 3), changes=True)
    assert chosen(3, 64, 56, window=(7, 7)) and not chosen(3, 64, 56, window=(3, 3))
    assert not chosen(3, 64, 9, window=(16, 16)) and not chosen(3, 64, 56, window=(7, 7), gap=1)
    monkeypatch.setattr(compiled_tiled_convolution, "has_tiles", lambda: False)
    assert not chosen(64, 256, 56)
