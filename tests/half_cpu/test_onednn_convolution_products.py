"""Gradients of filters as products with gathered windows, compared with the reference, and when they are chosen."""

import paddle.nn.functional as F
import pytest

from image_classification.half_cpu import compiled, onednn_convolution_passes, onednn_convolution_products
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.onednn_runs import (
    OF_ONEDNN,
    assert_within_one_rounding,
    needs_bfloat16_of_onednn,
    needs_onednn,
    run,
    tensors,
)

pytestmark = [needs_onednn, pytest.mark.skipif(not compiled.formats(), reason="needs a C++ compiler and AVX2")]

# images, filters, and how they move
GEOMETRIES = {
    "pixels": ((2, 24, 9, 7), (40, 24, 1, 1), {"stride": 2}),
    "padding": ((2, 24, 9, 7), (40, 24, 3, 3), {"stride": 2, "padding": 1}),
    "patches": ((2, 3, 12, 12), (20, 3, 4, 4), {"stride": 4}),
    "patches-with-a-rest": ((2, 3, 14, 13), (20, 3, 4, 4), {"stride": 4}),
    "one-side": ((2, 5, 10, 8), (6, 5, 3, 3), {"stride": 2, "padding": [0, 1, 0, 1]}),
    "same": ((2, 5, 9, 8), (6, 5, 3, 4), {"stride": [2, 3], "padding": "SAME"}),
    "dilation": ((2, 5, 13, 11), (6, 5, 3, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    "gaps": ((2, 5, 13, 11), (6, 5, 2, 3), {"stride": [3, 4]}),
    "taps-outside-only": ((2, 5, 1, 2), (6, 5, 5, 5), {"stride": 2, "padding": 2}),
    "no-stride": ((2, 5, 8, 7), (6, 5, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("dtype", OF_ONEDNN)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gradient_of_filters_from_gathered_windows_is_that_of_the_convolution(geometry, dtype, monkeypatch):
    served = []

    def run_as_product(*arguments):
        served.append(arguments[0])
        onednn_convolution_products.run_as_product(*arguments)

    monkeypatch.setattr(onednn_convolution_passes, "is_product", lambda changes, name, *key: name == "backward_weights")
    monkeypatch.setattr(onednn_convolution_passes, "run_as_product", run_as_product)
    prepared = onednn_convolution_passes._prepared.__wrapped__  # remembers what it was told
    monkeypatch.setattr(onednn_convolution_passes, "_prepared", prepared)
    images, filters, options = GEOMETRIES[geometry]
    inputs = tensors([images, filters], dtype)
    _, gradients = run(lambda x, weight: F.conv2d(x, weight, **options), inputs, "onednn")
    _, expected = run(lambda x, weight: F.conv2d(x, weight, **options), inputs, "reference")
    assert served == ["backward_weights"]
    if dtype == "bfloat16":
        assert_within_one_rounding(gradients[1], expected[1])
    else:  # sums in another order
        assert (gradients[1] - expected[1]).abs().max() <= 1e-5 * expected[1].abs().max()


@needs_bfloat16_of_onednn
@pytest.mark.parametrize(
    ("name", "filters", "stride", "data_type", "chosen"),
    [
        ("backward_weights", (2048, 1024, 1, 1), 2, onednn.BFLOAT16, True),
        ("backward_weights", (512, 512, 3, 3), 2, onednn.FLOAT32, True),
        ("backward_weights", (768, 3, 16, 16), 16, onednn.BFLOAT16, True),
        ("backward_weights", (768, 3, 16, 16), 16, onednn.FLOAT32, False),
        ("backward_weights", (128, 128, 3, 3), 2, onednn.BFLOAT16, False),
        ("backward_weights", (512, 512, 3, 3), 1, onednn.BFLOAT16, False),
        ("backward_weights", (2, 512, 512, 3, 3), 2, onednn.BFLOAT16, False),
        ("backward_data", (2048, 1024, 1, 1), 2, onednn.BFLOAT16, False),
        ("forward", (512, 512, 3, 3), 2, onednn.BFLOAT16, False),
        ("backward_data", (512, 512, 1, 1), 1, onednn.BFLOAT16, True),
    ],
)
def test_product_is_chosen_for_large_filters_that_move_by_strides(name, filters, stride, data_type, chosen):
    images = Layout(data_type, (2, filters[-3], 32, 32), None)
    results = Layout(data_type, (2, filters[0], 32 // stride, 32 // stride), None)
    geometry = ((stride, stride), (0, 0), (0, 0), (0, 0))
    key = (images, Layout(data_type, filters, None), results, geometry)
    assert onednn_convolution_products.is_product(True, name, *key) is chosen


@needs_bfloat16_of_onednn
@pytest.mark.parametrize(("width", "data_type", "filters", "chosen"), [
    (7, onednn.BFLOAT16, (512, 512, 3, 3), True), (8, onednn.BFLOAT16, (512, 512, 3, 3), False),
    (7, onednn.FLOAT32, (512, 512, 3, 3), False), (7, onednn.BFLOAT16, (128, 128, 3, 3), False),
])  # fmt: skip
def test_product_is_chosen_for_large_filters_of_narrow_results(width, data_type, filters, chosen):
    images, results = (Layout(data_type, (8, channels, 7, width), None) for channels in (filters[1], filters[0]))
    key = (images, Layout(data_type, filters, None), results, ((1, 1), (0, 0), (1, 1), (1, 1)))
    assert onednn_convolution_products.is_product(True, "backward_weights", *key) is chosen
