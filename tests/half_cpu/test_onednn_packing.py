"""Compiled copies of weights to oneDNN's blocked layouts and back, compared with oneDNN's own copies bit for bit."""

import numpy as np
import paddle.nn.functional as F
import pytest

from image_classification.half_cpu import compiled, onednn_convolution_passes, onednn_matmul
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Cache, Layout, dense_strides
from tests.helpers.onednn_runs import needs_bfloat16_of_onednn, needs_onednn, run, tensors

pytestmark = [
    needs_onednn,
    pytest.mark.skipif(not compiled.formats(), reason="needs a C++ compiler and AVX2"),
]

BITS = {onednn.BFLOAT16: np.uint16, onednn.FLOAT32: np.uint32}
PASSES = ("forward", "backward_data", "backward_weights")

# inputs, outputs, size of the images, window, stride, groups
FILTERS = {
    "resnet-stem": (3, 64, 56, 7, 2, 1),
    "resnet-3x3": (64, 64, 14, 3, 1, 1),
    "resnet-3x3-stride": (256, 256, 14, 3, 2, 1),
    "resnet-1x1": (64, 256, 14, 1, 1, 1),
    "resnext": (128, 128, 14, 3, 1, 32),
    "regnet-groups-of-24": (72, 72, 14, 3, 2, 3),
    "groups-of-12": (48, 48, 7, 3, 1, 4),
    "odd-groups": (30, 30, 7, 3, 1, 2),
    "mobilenet-expansion": (24, 88, 14, 1, 1, 1),
    "mobilenet-projection": (240, 40, 14, 1, 1, 1),
    "mobilenet-depthwise": (96, 96, 14, 5, 1, 96),
    "odd-depthwise": (37, 37, 9, 3, 1, 37),
    "convnext-stem": (3, 96, 32, 4, 4, 1),
    "convnext-downsample": (96, 192, 14, 2, 2, 1),
    "patches": (3, 192, 32, 16, 16, 1),
    "odd-channels": (17, 33, 9, 5, 1, 1),
    "one-channel": (1, 5, 8, 3, 1, 1),
    "one-result": (7, 1, 8, 1, 1, 1),
}
# rows of the left factor, columns and rows of the right one, whether that is transposed
PRODUCTS = {
    "mlp": (256, 192, 768, False),
    "mlp-transposed": (1024, 768, 192, True),
    "classes": (128, 192, 1000, False),
    "classes-transposed": (1024, 1000, 192, True),
    "odd": (300, 101, 71, False),
    "odd-transposed": (1025, 101, 71, True),
    "one-too-many": (200, 65, 65, False),
}


def images(data_type, batch, channels, size):
    shape = (batch, channels, size, size)
    return Layout(data_type, shape, (channels * size * size, 1, channels * size, channels))


def convolution_key(name, data_type):
    inputs, outputs, size, window, stride, groups = FILTERS[name]
    padding = (window - 1) // 2 if stride < window else 0
    result = (size + 2 * padding - window) // stride + 1
    shape = (outputs, inputs, window, window)
    if groups > 1:
        shape = (groups, outputs // groups, inputs // groups, window, window)
    filters = Layout(data_type, shape, dense_strides(shape))
    geometry = ((stride, stride), (0, 0), (padding, padding), (padding, padding))
    return images(data_type, 2, inputs, size), filters, images(data_type, 2, outputs, result), geometry


def both(describe, key, monkeypatch):
    """Return the compiled copy of a key and oneDNN's."""
    fast = Cache().get(describe, *key)
    with monkeypatch.context() as patched:
        patched.setattr(compiled, "formats", frozenset)
        known = Cache().get(describe, *key)
    assert fast.implementation == "compiled" != known.implementation
    return fast, known


def copied(copy, values, size, bits=None):
    """Return what a copy makes of an array, and of the memory behind it that it must leave alone."""
    result = np.full(size + 64, 0x5555, bits or values.dtype)
    copy(values.ctypes.data, result.ctypes.data)
    assert (result[size:] == 0x5555).all()
    return result[:size]


def check(fast, known, plain, blocked_size, back=None):
    bits, written = BITS[plain.data_type], BITS[back or plain.data_type]
    sizes = [int(np.prod(plain.shape)), blocked_size // np.dtype(bits).itemsize]
    values = np.random.default_rng(0).integers(0, np.iinfo(bits).max, sizes[bool(back)], dtype=bits, endpoint=True)
    results = [copied(copy, values, sizes[not back], written) for copy in (fast, known)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "data_type",
    [
        pytest.param(onednn.BFLOAT16, marks=needs_bfloat16_of_onednn, id="bfloat16"),
        pytest.param(onednn.FLOAT32, id="float32"),
    ],
)
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("filters", FILTERS)
def test_filters_of_every_kind_are_copied_as_onednn_copies_them(filters, name, data_type, monkeypatch):
    describe = onednn_convolution_passes._describe_weights
    key = (name, *convolution_key(filters, data_type))
    if describe.preferred(data_type, *key):
        pytest.skip("no convolution of oneDNN's")
    primitive = Cache().get(onednn_convolution_passes._describe, *key)
    for plain_type in {data_type, onednn.FLOAT32} if name == "backward_weights" else {data_type}:
        copies = both(describe, (plain_type, *key), monkeypatch)
        check(*copies, key[2], primitive.sizes[1], back=plain_type if name == "backward_weights" else None)


@needs_bfloat16_of_onednn
@pytest.mark.parametrize("product", PRODUCTS)
def test_right_factors_of_products_are_copied_as_onednn_copies_them(product, monkeypatch):
    rows, columns, features, transposed = PRODUCTS[product]
    left = Layout(onednn.BFLOAT16, (rows, columns), (columns, 1))
    right = Layout(onednn.BFLOAT16, (columns, features), (1, columns) if transposed else (features, 1))
    out = Layout(onednn.BFLOAT16, (rows, features), (features, 1))
    key = (left, right, None, out, ())
    primitive = Cache().get(onednn_matmul._describe, left, right._replace(strides=None), None, out, ())
    check(*both(onednn_matmul._describe_packing, key, monkeypatch), right, primitive.sizes[1])


@needs_bfloat16_of_onednn
def test_blocks_at_the_end_of_padded_axes_are_zero_where_nothing_is(monkeypatch):
    left = Layout(onednn.BFLOAT16, (300, 101), (101, 1))
    right = Layout(onednn.BFLOAT16, (101, 71), (71, 1))
    key = (left, right, None, Layout(onednn.BFLOAT16, (300, 71), (71, 1)), ())
    primitive = Cache().get(onednn_matmul._describe, left, right._replace(strides=None), *key[2:])
    copy = Cache().get(onednn_matmul._describe_packing, *key)
    ones = np.ones(101 * 71, np.uint16)
    assert copied(copy, ones, primitive.sizes[1] // 2).sum() == ones.size


def test_layout_that_is_more_than_blocks_is_left_to_onednn(monkeypatch):
    monkeypatch.setattr(onednn.Library, "blocking", lambda library, md: None)
    key = (onednn.FLOAT32, "forward", *convolution_key("resnet-3x3", onednn.FLOAT32))
    assert Cache().get(onednn_convolution_passes._describe_weights, *key).implementation != "compiled"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_convolution_and_its_gradients_are_the_same_bits_without_compiled_copies(dtype, monkeypatch):
    inputs = tensors([(2, 24, 9, 9), (40, 24, 3, 3)], dtype)

    def results():
        result, gradients = run(lambda x, weight: F.conv2d(x, weight, padding=1), inputs, "onednn")
        return [tensor.astype("float32").numpy() for tensor in (result, *gradients)]

    fast = results()
    monkeypatch.setattr(onednn.Library, "blocking", lambda library, md: None)
    monkeypatch.setattr(onednn_convolution_passes, "cache", Cache())
    monkeypatch.setattr(onednn_convolution_passes, "_prepared", onednn_convolution_passes._prepared.__wrapped__)
    for actual, expected in zip(fast, results(), strict=True):
        np.testing.assert_array_equal(actual, expected)
