"""Convolutions by tiles, compared with float64 and with the kernels without tiles, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled, compiled_winograd, onednn_convolution_passes
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.compiled_library import load
from image_classification.half_cpu.onednn_primitives import Layout
from image_classification.layers import ConvNorm
from tests.helpers.onednn_runs import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    HALVES,
    ROUNDING,
    by_threads,
    needs_bfloat16_of_onednn,
    needs_onednn,
    run,
    tensors,
)

pytestmark = [needs_onednn, pytest.mark.skipif(not compiled.formats(), reason="needs a C++ compiler and AVX2")]

HAS_AMX = bool(compiled.formats()) and load().has_amx

# images, filters, padding: sides and channels that fill no tile and no vector, padding on one side, up to 130 results
SHAPES = {
    "whole": ((2, 32, 8, 12), (64, 32, 3, 3), 1),
    "rest": ((3, 20, 9, 7), (67, 20, 3, 3), 1),
    "no-padding": ((1, 16, 6, 11), (16, 16, 3, 3), 0),
    "wide-padding": ((2, 16, 5, 3), (130, 16, 3, 3), 2),
    "one-side": ((2, 24, 10, 6), (18, 24, 3, 3), [0, 1, 2, 0]),
    "pixel": ((5, 17, 1, 1), (16, 17, 3, 3), 1),
    "one-channel": ((2, 1, 13, 14), (1, 1, 3, 3), 1),
    "rounds": ((3, 16, 56, 56), (17, 16, 3, 3), 1),
    "many-channels": ((1, 130, 41, 38), (16, 130, 3, 3), 1),
}  # fmt: skip


@pytest.fixture
def tiles(monkeypatch):
    """A function that says whether passes are computed by tiles from now on."""
    prepared = onednn_convolution_passes._prepared.__wrapped__  # remembers what it was told
    monkeypatch.setattr(onednn_convolution_passes, "_prepared", prepared)

    def choose(yes):
        monkeypatch.setattr(compiled_winograd, "pays", lambda changes, name, *key: yes)

    return choose


def exactly(inputs, padding):
    """Return the result and the gradients of a convolution in float64, with the gradient that `run` gives."""
    wide = [tensor.detach().astype("float64") for tensor in inputs]
    for tensor in wide:
        tensor.stop_gradient = False
    out = F.conv2d(*wide, padding=padding)
    seed = paddle.to_tensor(np.random.default_rng(1).standard_normal(out.shape).astype("float32"))
    out.backward(seed.astype(inputs[0].dtype).astype("float64"))
    return [tensor.numpy() for tensor in (out, wide[0].grad, wide[1].grad)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_passes_by_tiles_are_the_exact_ones_rounded_once(shape, dtype, tiles):
    images, filters, padding = SHAPES[shape]
    inputs = tensors([images, filters], dtype)
    tiles(True)
    out, gradients = run(lambda x, weight: F.conv2d(x, weight, padding=padding), inputs, "onednn")
    for actual, exact in zip((out, *gradients), exactly(inputs, padding), strict=True):
        assert str(actual.dtype).endswith(dtype)
        error = np.abs(actual.astype("float64").numpy() - exact)
        # Half a unit in the last place; float32 sums of tiles, 4e-6 of the largest number measured at 512 channels.
        bound = ROUNDING[dtype] / 2 * np.abs(exact) + 1e-5 * np.abs(exact).max()
        assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_what_is_not_finite_is_where_it_is_without_tiles(value, dtype, tiles):
    """A finite 3e38 leaves float32 within a tile; float16 has no such number."""
    x, weight = tensors([(1, 24, 13, 10), (20, 24, 3, 3)], dtype)
    x = x.detach()
    x[0, 3, 4, 8] = value
    x.stop_gradient = False
    found = []
    for by_tiles in (True, False):
        tiles(by_tiles)
        out, gradients = run(lambda x, weight: F.conv2d(x, weight, padding=1), [x, weight], "onednn")
        found.append([tensor.astype(FLOAT32).numpy() for tensor in (out, gradients[1])])
    assert not np.isfinite(found[1][0]).all() or value == 3e38
    assert np.isfinite(found[1][0]).mean() > 0.9
    for actual, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_image_beside_one_that_is_not_finite_has_the_same_bits(dtype, tiles):
    """Images, gradients and residuals of the three: the second one's results are computed without tiles."""
    paddle.seed(0)
    layer = ConvNorm(24, 70, 3, 1, 1, activation=F.silu)
    layer.eval()
    layer.conv.to(dtype=dtype)
    x, residual, gradient = (paddle.randn([3, channels, 7, 9]) for channels in (24, 70, 70))
    found = []
    for value, by_tiles in ((0.5, True), (np.nan, True), (np.nan, False)):
        tiles(by_tiles)
        x[1, 2, 3, 4] = gradient[1, 2, 3, 4] = value
        images = x.astype(dtype)
        with paddle.no_grad(), half_cpu.dispatch():
            joined = layer(images, residual.astype(dtype))
        images.stop_gradient = False
        with half_cpu.dispatch():
            out = F.conv2d(images, layer.conv.weight, padding=1)
        out.backward(gradient.astype(dtype))
        found.append([tensor.astype(FLOAT32).numpy() for tensor in (out, images.grad, joined)])
    for finite, beside, alone in zip(*found, strict=True):
        np.testing.assert_array_equal(beside[::2], finite[::2])
        np.testing.assert_array_equal(np.isnan(beside[1]), np.isnan(alone[1]))
        assert 0.001 < np.isnan(alone[1]).mean() < 0.5


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_beyond_the_format_become_inf_one_by_one(dtype, tiles):
    """Where sums of float16 numbers are beyond 65504 float32 still holds them."""
    x, weight = tensors([(2, 16, 8, 8), (16, 16, 3, 3)], dtype, scale=100.0 if dtype == FLOAT16 else 1e18)
    found = []
    for by_tiles in (True, False):
        tiles(by_tiles)
        with paddle.no_grad(), half_cpu.dispatch():
            found.append(F.conv2d(x, weight, padding=1).astype(FLOAT32).numpy())
    if dtype == FLOAT16:
        assert 0.001 < np.isinf(found[1]).mean() < 0.9
    np.testing.assert_array_equal(np.isinf(found[0]), np.isinf(found[1]))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation", [None, F.relu, F.silu])
def test_norm_sum_and_activation_follow_the_tiles_before_the_rounding(activation, dtype, tiles):
    paddle.seed(0)
    layer = ConvNorm(24, 70, 3, 1, 1, activation=activation)
    layer.eval()
    layer.bn._mean.set_value(paddle.randn([70]) * 0.1)
    layer.bn._variance.set_value(paddle.rand([70]) + 0.5)
    layer.conv.to(dtype=dtype)
    x, residual = paddle.randn([2, 24, 7, 9]).astype(dtype), paddle.randn([2, 70, 7, 9]).astype(dtype)
    tiles(True)
    with paddle.no_grad(), half_cpu.frozen(layer), half_cpu.dispatch():
        actual = [layer(x, residual).astype("float64").numpy() for _ in range(2)]  # the second one's filters are kept
    y = F.conv2d(x.astype("float64"), layer.conv.weight.astype("float64"), padding=1)
    bn = [number.astype("float64") for number in (layer.bn._mean, layer.bn._variance, layer.bn.weight, layer.bn.bias)]
    y = F.batch_norm(y, *bn, epsilon=layer.bn._epsilon) + residual.astype("float64")
    exact = (y if activation is None else activation(y)).numpy()
    bound = ROUNDING[dtype] / 2 * np.abs(exact) + 1e-5 * np.abs(exact).max()
    assert (np.abs(actual[0] - exact) <= bound).all()
    np.testing.assert_array_equal(actual[0], actual[1])


def test_results_of_tiles_do_not_depend_on_the_number_of_threads():
    shapes = [(2, 40, 22, 19), (150, 40, 3, 3)]
    key = key_of(FLOAT16, *shapes)
    assert all(compiled_winograd.pays(True, name, *key) for name in ("forward", "backward_data", "backward_weights"))

    def compute():
        result, gradients = run(lambda x, weight: F.conv2d(x, weight, padding=1), tensors(shapes, FLOAT16), "onednn")
        return [tensor.astype(FLOAT32).numpy() for tensor in (result, *gradients)]

    for one, three in zip(*by_threads((1, 3), compute), strict=True):
        np.testing.assert_array_equal(one, three)


def key_of(dtype, images, filters, padding=1, stride=1):
    """Return the layouts and the geometry of a convolution as a pass gets them."""
    x, weight = (paddle.empty(shape, dtype) for shape in (images, filters))
    return onednn_convolution_passes.plan(
        x, weight, [stride, stride], [padding, padding], "EXPLICIT", [1, 1], 1, "NCHW"
    ).key


@pytest.mark.parametrize(
    ("dtype", "images", "filters", "options", "changes", "chosen"),
    [
        (FLOAT16, (8, 64, 56, 56), (64, 64, 3, 3), {}, True, True),
        (FLOAT16, (1, 512, 7, 7), (512, 512, 3, 3), {}, True, False),
        (FLOAT16, (1, 512, 7, 7), (512, 512, 3, 3), {}, False, not HAS_AMX),
        (FLOAT16, (8, 256, 14, 14), (256, 256, 3, 3), {}, True, not HAS_AMX),
        (FLOAT16, (8, 128, 28, 28), (128, 128, 3, 3), {}, True, True),
        (FLOAT16, (1, 128, 28, 28), (128, 128, 3, 3), {}, False, True),
        (FLOAT16, (8, 3, 224, 224), (64, 3, 3, 3), {}, True, False),
        (FLOAT16, (8, 64, 56, 56), (64, 64, 3, 3), {"stride": 2}, True, False),
        (FLOAT16, (8, 64, 56, 56), (64, 64, 1, 1), {"padding": 0}, True, False),
        (FLOAT16, (8, 64, 56, 56), (64, 64, 3, 3), {"padding": 3}, True, False),
        (FLOAT16, (512, 64, 1, 1), (64, 64, 3, 3), {}, True, False),
        (FLOAT32, (8, 64, 56, 56), (64, 64, 3, 3), {}, False, False),
    ],
)
def test_tiles_are_chosen_for_half_images_that_fill_them(dtype, images, filters, options, changes, chosen):
    assert compiled_winograd.pays(changes, "forward", *key_of(dtype, images, filters, **options)) is chosen


@needs_bfloat16_of_onednn
@pytest.mark.skipif(not compiled_winograd.multiplies_bfloat16(), reason="needs AVX512-BF16")
@pytest.mark.parametrize("by_amx", [False, True], ids=["", "amx"])
@pytest.mark.parametrize(
    ("name", "images", "filters", "changes", "chosen"),
    [
        ("forward", (8, 128, 28, 28), (128, 128, 3, 3), True, True),
        ("backward_data", (8, 128, 28, 28), (128, 128, 3, 3), True, True),
        ("backward_weights", (8, 128, 28, 28), (128, 128, 3, 3), True, True),
        ("backward_weights", (8, 256, 14, 14), (256, 256, 3, 3), True, False),
        ("forward", (8, 256, 14, 14), (256, 256, 3, 3), True, False),
        ("forward", (1, 256, 14, 14), (256, 256, 3, 3), False, True),
        ("forward", (8, 512, 14, 14), (512, 512, 3, 3), False, False),
        ("forward", (8, 512, 7, 7), (512, 512, 3, 3), False, False),
        ("forward", (1, 256, 28, 28), (256, 256, 3, 3), True, False),
        ("forward", (1, 256, 28, 28), (256, 256, 3, 3), False, True),
        ("forward", (8, 64, 56, 56), (64, 64, 3, 3), True, True),
        ("forward", (8, 48, 56, 56), (48, 48, 3, 3), True, False),
        ("forward", (1, 48, 56, 56), (48, 48, 3, 3), False, True),
        ("forward", (1, 32, 56, 56), (32, 32, 3, 3), False, False),
        ("forward", (1, 64, 13, 13), (64, 64, 3, 3), False, False),
    ],
)
def test_tiles_are_chosen_where_they_beat_products_of_bfloat16(
    name, images, filters, changes, chosen, by_amx, monkeypatch
):
    monkeypatch.setattr(compiled_winograd.load(), "has_amx", by_amx)
    assert compiled_winograd.pays(changes, name, *key_of(BFLOAT16, images, filters)) is (chosen and not by_amx)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("images", [(8, 64, 20, 20), (3, 256, 7, 7)])
def test_result_of_kept_filters_does_not_depend_on_the_number_of_images(images, dtype):
    paddle.seed(0)
    layer = paddle.nn.Conv2D(images[1], 64, 3, padding=1, bias_attr=False)
    layer.to(dtype=dtype)
    x = paddle.randn(images).astype(dtype)
    with paddle.no_grad(), half_cpu.frozen(layer), half_cpu.dispatch():
        whole, single = (layer(some).astype(FLOAT32).numpy() for some in (x, x[:1]))
    np.testing.assert_array_equal(whole[:1], single)


@pytest.mark.parametrize("dtype", HALVES)
def test_filters_that_change_are_no_tiles_of_few_pixels(dtype, monkeypatch):
    asked = []
    prepared = onednn_convolution_passes._prepared
    monkeypatch.setattr(onednn_convolution_passes, "_prepared", lambda *key: asked.append(key[0]) or prepared(*key))
    layer = paddle.nn.Conv2D(64, 64, 3, padding=1, bias_attr=False)
    layer.to(dtype=dtype)
    x = paddle.randn([1, 64, 7, 7]).astype(dtype)
    x.stop_gradient = False
    contexts = (half_cpu.frozen(paddle.nn.Linear(4, 4)), half_cpu.rounded_once(layer), half_cpu.frozen(layer))
    for context in contexts:
        with context, half_cpu.dispatch():
            layer(x).sum().backward()
    assert asked == [True] * 6 + [False, False, True]  # a gradient of filters is none that is kept


def test_grouped_filters_are_no_tiles():
    filters = Layout(onednn.FLOAT16, (2, 16, 16, 3, 3), (16 * 16 * 9, 16 * 9, 9, 3, 1))
    source, _, target, geometry = key_of(FLOAT16, (8, 32, 28, 28), (32, 32, 3, 3))
    assert not compiled_winograd.pays(True, "forward", source, filters, target, geometry)
