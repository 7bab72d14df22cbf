"""The passes of a convolution where windows reach past the images."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled, onednn_convolution_passes, onednn_library
from image_classification.half_cpu.compiled_tiles import has_tiles
from image_classification.half_cpu.onednn_convolution import conv2d_transpose
from image_classification.half_cpu.onednn_convolution_passes import _describe, _prepared, plan
from image_classification.half_cpu.onednn_primitives import cache, servable
from tests.helpers.onednn_cases import CASES
from tests.helpers.onednn_runs import ALL, needs_onednn, run, tensors
from tests.helpers.policies import Policy


def leave_large_numbers_in_memory():
    for _ in range(2):
        pieces = [paddle.full([1 << size], 1e30, "float32") for size in range(8, 19)]
        del pieces


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("image", "filters", "stride", "padding", "groups"),
    [
        ((1, 16, 2, 2), (64, 16, 4, 4), 4, 1, 1),
        ((4, 32, 2, 2), (64, 16, 4, 4), 4, 1, 2),
        ((2, 32, 1, 1), (64, 32, 5, 5), 4, 2, 1),
        ((4, 16, 7, 7), (64, 1, 5, 5), 8, 2, 16),
        ((2, 32, 6, 1), (64, 32, 3, 3), 2, 1, 1),
        ((2, 32, 1, 6), (64, 32, 3, 3), 2, 1, 1),
        ((2, 32, 2, 2), (64, 32, 3, 3), 1, 1, 1),
        ((3, 72, 5, 1), (9, 24, 3, 3), 2, 2, 3),
        ((1, 32, 1, 1), (16, 32, 5, 5), 2, 3, 1),
        ((3, 17, 2, 1), (16, 17, 5, 5), 2, 4, 1),
    ],
)
def test_filter_gradient_where_taps_see_only_padding_is_that_of_float32(dtype, image, filters, stride, padding, groups):
    """What else was in memory took part in single columns of bfloat16 results."""
    paddle.seed(0)
    x, weight = paddle.randn(image).astype(dtype), paddle.randn(filters).astype(dtype)
    weight.stop_gradient = False
    leave_large_numbers_in_memory()
    with half_cpu.dispatch():
        result = F.conv2d(x, weight, stride=stride, padding=padding, groups=groups)
    result.backward(paddle.ones_like(result))
    wide = weight.detach().astype("float32")
    wide.stop_gradient = False
    F.conv2d(x.astype("float32"), wide, stride=stride, padding=padding, groups=groups).sum().backward()
    bound = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-17}[dtype]  # one rounding of the result
    expected = wide.grad.numpy()
    difference = np.abs(weight.grad.astype("float32").numpy() - expected)
    assert (difference <= bound * np.abs(expected) + 2.0**-16 * np.abs(expected).max()).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("image", [(1, 24), (24, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_whose_windows_see_only_padding_is_zero_and_so_are_its_gradients(dtype, image, stride):
    """With AMX oneDNN 3.6 ended the process."""
    x, weight = paddle.randn([2, 48, *image]).astype(dtype), paddle.randn([48, 48, 3, 3]).astype(dtype)
    x.stop_gradient = weight.stop_gradient = False
    padding = [part for size in image for part in ((2, 4) if size == 1 else (1, 1))]  # taps 3 apart step over one pixel
    with half_cpu.dispatch():
        result = F.conv2d(x, weight, stride=stride, padding=padding, dilation=3)
    result.backward(paddle.ones_like(result))
    assert all(not bool(tensor.astype("float32").any()) for tensor in (result, x.grad, weight.grad))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("width", "groups", "channels", "outputs", "window", "dilation"),
    [
        (31, 2, 2, 2, (3, 3), 2),
        (40, 2, 17, 8, (2, 2), 2),
        (40, 3, 1, 2, (3, 1), (2, 1)),
        (70, 3, 24, 17, (3, 3), 3),
        (70, 2, 16, 16, (3, 3), 2),
        (70, 1, 17, 17, (3, 3), 2),
    ],
)
def test_filter_gradient_of_windows_with_gaps_is_that_of_float32(
    width, groups, channels, outputs, window, dilation, dtype
):
    """oneDNN's of bfloat16 was what lay in memory, up to 1e36, where it fills channels up to a multiple of 16."""
    paddle.seed(0)
    x = paddle.randn([2, groups * channels, 9, width]).astype(dtype)
    weight = paddle.randn([groups * outputs, channels, *window]).astype(dtype)
    gradients, gradient = [], None
    leave_large_numbers_in_memory()
    for inside in (True, False):
        own = weight.astype(dtype if inside else "float32").detach()
        own.stop_gradient = False
        with half_cpu.dispatch() if inside else contextlib.nullcontext():
            result = F.conv2d(x.astype(own.dtype), own, padding=1, dilation=dilation, groups=groups)
            gradient = paddle.randn(result.shape).astype(dtype) if gradient is None else gradient
        result.backward(gradient.astype(own.dtype))
        gradients.append(own.grad.astype("float32").numpy())
    found, expected = gradients
    bound = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-17}[dtype]  # one rounding of the result
    assert (np.abs(found - expected) <= bound * np.abs(expected) + 2.0**-16 * np.abs(expected).max()).all()


@pytest.mark.parametrize(("channels", "stride", "side"), [(3, 2, 112), (15, 2, 80), (4, 3, 225), (16, 2, 80)])
def test_strided_pixels_have_the_filter_gradient_of_paddle(channels, stride, side):
    """oneDNN reads and writes far beyond images of fewer than 16 channels: see tests/edges."""
    x, weight = paddle.randn([1, channels, side, side]), paddle.randn([48, channels, 1, 1])
    weight.stop_gradient = False
    gradients = []
    for backend in ("onednn", "reference"):
        weight.clear_gradient(False)
        with half_cpu.dispatch(backend=backend):
            result = F.conv2d(x, weight, stride=stride)
        result.backward(result.detach())
        gradients.append(weight.grad.numpy())
    # Sums of up to 5625 float32 terms in another order.
    assert np.abs(gradients[0] - gradients[1]).max() <= 2.0**-16 * np.abs(gradients[1]).max()


def assert_is_paddles_float32(x, weight, **arguments):
    """A convolution and its gradients are those of stock Paddle's on float32 copies, but for one rounding."""
    dtype, results, gradient = x.dtype.name.lower(), [], None
    for inside in (True, False):
        own = [each.astype(dtype if inside else "float32").detach() for each in (x, weight)]
        for each in own:
            each.stop_gradient = False
        with half_cpu.dispatch() if inside else contextlib.nullcontext():
            result = F.conv2d(*own, **arguments)
        gradient = paddle.randn(result.shape).astype(dtype) if gradient is None else gradient
        result.backward(gradient.astype(result.dtype))
        results.append([each.astype("float32").numpy() for each in (result, *(one.grad for one in own))])
    bound = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-17}[dtype]  # one rounding of the result
    for found, expected in zip(*results, strict=True):
        assert (np.abs(found - expected) <= bound * np.abs(expected) + 2.0**-16 * np.abs(expected).max()).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("image", "filters", "stride", "padding", "dilation", "groups"),
    [
        ((2, 16, 4, 4), (32, 16, 4, 4), 4, 0, 1, 1),  # a single patch
        ((2, 8, 8, 8), (16, 8, 8, 8), 8, 0, 1, 1),
        ((2, 3, 32, 32), (16, 3, 32, 32), 32, 0, 1, 1),
        ((2, 16, 17, 4), (16, 16, 4, 4), 4, 0, 1, 1),
        ((2, 1, 7, 4), (16, 1, 3, 3), (1, 4), (0, 0), 1, 1),
        ((2, 1, 5, 1), (4, 1, 2, 2), (1, 2), 1, 1, 1),
        ((2, 12, 7, 3), (36, 1, 4, 3), (1, 2), (2, 0), 1, 12),
        ((2, 12, 3, 14), (2, 12, 6, 6), 8, 3, 1, 1),
        ((2, 4, 10, 15), (4, 4, 7, 7), 8, 3, 1, 1),
        ((2, 3, 6, 1), (16, 3, 2, 2), 4, 3, 2, 1),
        ((3, 8, 5, 1), (4, 8, 2, 2), 2, 3, 2, 1),
        ((2, 4, 6, 2), (32, 4, 1, 1), (1, 2), (0, 0, 0, 2), 1, 1),
    ],
)
def test_convolution_that_moves_by_several_columns_to_one_or_two_is_that_of_paddle(
    dtype, image, filters, stride, padding, dilation, groups
):
    """oneDNN's was what lay in memory, or sums of other products, and some ended the process."""
    paddle.seed(0)
    x, weight = paddle.randn(image).astype(dtype), paddle.randn(filters).astype(dtype)
    leave_large_numbers_in_memory()
    assert_is_paddles_float32(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("image", "window", "stride", "padding", "dilation"),
    [
        *(((16, 9, side), (3, 3), 1, 1, 1) for side in (13, 14, 15, 28, 29)),  # sums that are kept at a time
        *(((16, 9, 20), (3, taps), 1, (1, taps // 2), 1) for taps in (1, 2, 4, 5, 6, 7, 8, 11)),  # taps side by side
        ((35, 47, 9), (3, 3), 1, 1, 1),  # rows of one task
        ((35, 48, 9), (3, 3), 1, 1, 1),  # and of two
        ((16, 99, 6), (3, 3), 2, 1, 1),
        ((16, 60, 7), (7, 3), 1, (5, 1, 2, 0), 1),
        ((16, 60, 7), (3, 3), 1, 4, 4),
        ((16, 23, 31), (5, 5), 2, 2, 1),
        ((16, 23, 31), (2, 3), 4, 0, 1),  # rows and columns that nothing reads
        ((16, 23, 31), (3, 2), 3, (2, 0, 1, 2), 2),
    ],
)
def test_depthwise_convolution_and_its_gradients_are_those_of_float32(dtype, image, window, stride, padding, dilation):
    paddle.seed(0)
    x, weight = paddle.randn([2, *image]).astype(dtype), paddle.randn([image[0], 1, *window]).astype(dtype)
    assert_is_paddles_float32(x, weight, stride=stride, padding=padding, dilation=dilation, groups=image[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("many", [2, 3, 5, 7, 8, 9])
@pytest.mark.parametrize(
    ("image", "window", "stride", "padding", "dilation"),
    [
        ((1, 15, 29), (3, 3), 1, 1, 1),
        ((2, 9, 20), (3, 5), 1, (1, 2), 1),
        ((35, 11, 9), (3, 3), 2, 1, 1),
        ((17, 30, 7), (7, 3), 1, (5, 1, 2, 0), 2),
        ((16, 13, 11), (2, 3), 4, 0, 1),
        ((16, 5, 5), (1, 1), 1, 0, 1),
    ],
)
def test_convolution_of_one_channel_with_several_results_is_that_of_float32(
    dtype, many, image, window, stride, padding, dilation
):
    paddle.seed(0)
    x, weight = paddle.randn([3, *image]).astype(dtype), paddle.randn([many * image[0], 1, *window]).astype(dtype)
    assert_is_paddles_float32(x, weight, stride=stride, padding=padding, dilation=dilation, groups=image[0])


@needs_onednn
@pytest.mark.skipif(not compiled.formats(), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_several_results_of_a_channel_are_those_of_our_own_kernel(dtype):
    """oneDNN's took up to twice as long as stock Paddle's, and so did those of widened copies."""
    x, weight = paddle.randn([2, 64, 14, 13]).astype(dtype), paddle.randn([128, 1, 3, 3]).astype(dtype)
    key = plan(x, weight, [1, 1], [1, 1], "EXPLICIT", [1, 1], 64, "NCHW").key
    for name in ("forward", "backward_data", "backward_weights"):
        assert _prepared(True, key[1].data_type, name, *key)[0].implementation == "compiled"


@pytest.mark.parametrize(("width", "served"), [(1, False), (3, True)])
def test_transposed_convolution_whose_gradient_needs_our_kernels_is_declined_without_them(monkeypatch, width, served):
    x, filters = paddle.randn([2, 8, 1, width]).astype("bfloat16"), paddle.randn([8, 8, 4, 4]).astype("bfloat16")
    if compiled.formats() - {onednn_library.FLOAT16} or not servable(x):
        pytest.skip("bfloat16 is not oneDNN's here")
    monkeypatch.setattr(compiled, "formats", frozenset)
    with paddle.no_grad():
        result = conv2d_transpose(None, (x, filters, [4, 4]), {})
    assert (result is not NotImplemented) == served


@pytest.mark.parametrize(("dtype", "channels", "served"), [
    ("float32", 3, False), ("float16", 3, False), ("bfloat16", 1, False), ("float32", 8, True), ("bfloat16", 3, True),
])  # fmt: skip
def test_transposed_convolution_to_few_channels_is_left_to_paddle(dtype, channels, served):
    x, filters = paddle.randn([2, 8, 6, 6]).astype(dtype), paddle.randn([8, channels, 4, 4]).astype(dtype)
    if servable(x):
        assert (conv2d_transpose(None, (x, filters, [2, 2]), {}) is not NotImplemented) == served


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("groups", [1, 2, 16])
def test_filters_that_a_convolution_rounds_itself_are_those_of_a_cast_and_so_are_their_gradients(dtype, groups):
    results = []
    for cast in (lambda weight: weight, lambda weight: weight.astype(dtype)):
        paddle.seed(0)
        x, weight = paddle.randn([2, 16, 9, 7]).astype(dtype), paddle.randn([16, 16 // groups, 3, 3])
        x.stop_gradient = weight.stop_gradient = False
        with half_cpu.dispatch(policy=Policy(conv2d=dtype, depthwise_conv2d=dtype)):
            result = F.conv2d(x, cast(weight), groups=groups, padding=1)
        result.backward(result.detach())
        assert weight.grad.dtype == paddle.float32
        results.append([each.astype("float32").numpy() for each in (result, x.grad, weight.grad)])
    for own, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize(("window", "dilation"), [((5, 5), 1), ((2, 7), 1), ((3, 3), 2), ((5, 1), 1)])
def test_filter_gradient_of_a_float32_depthwise_layer_is_that_of_paddle_and_not_of_groups(window, dilation):
    """oneDNN has a kernel for three columns side by side; others it computes as groups of many channels."""
    paddle.seed(0)
    x, weight = paddle.randn([2, 24, 14, 13]), paddle.randn([24, 1, *window])
    weight.stop_gradient = False
    gradients = []
    for backend in ("onednn", "reference"):
        weight.clear_gradient(False)
        with half_cpu.dispatch(backend=backend):
            result = F.conv2d(x, weight, padding=2, dilation=dilation, groups=24)
        result.backward(result.detach())
        gradients.append(weight.grad.numpy())
    # Sums of up to 400 float32 terms in another order.
    assert np.abs(gradients[0] - gradients[1]).max() <= 2.0**-17 * np.abs(gradients[1]).max()
    key = plan(x, weight, [1, 1], [2, 2], "EXPLICIT", [dilation, dilation], 24, "NCHW").key
    assert cache.get(_describe, "backward_weights", *key).implementation != "jit:avx512_core"


@pytest.mark.skipif(not compiled.formats() or has_tiles(), reason="needs a C++ compiler; AMX has kernels of its own")
@needs_onednn
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_windows_of_a_few_float16_channels_have_the_bits_of_float32s_convolution_rounded_once(channels):
    """Gathered for our own kernel, number by number, they took up to three times as long."""
    shapes, found = ([2, channels, 65, 50], [24, channels, 3, 3], [2, 24, 33, 25]), []
    for dtype in ("float16", "float32"):
        paddle.seed(0)
        x, weight, gradient = (paddle.randn(shape).astype("float16").astype(dtype) for shape in shapes)
        weight.stop_gradient = False
        with half_cpu.dispatch():
            result = F.conv2d(x, weight, stride=2, padding=1)
        result.backward(gradient)
        found.append([tensor.astype("float16").numpy() for tensor in (result, weight.grad)])
    for half, single in zip(*found, strict=True):
        np.testing.assert_array_equal(half, single)


CONVOLUTIONS = [name for name, (operator, *_) in CASES.items() if "conv2d" in operator]


@needs_onednn
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_rearranged_filters_stay_within_the_memory_that_they_are_given(case, dtype, monkeypatch):
    _, function, shapes, _ = CASES[case]
    given = []

    def scratch(size):
        tensor = paddle.full([size + 4096], 0x5A, "uint8")
        given.append((tensor, size))
        return tensor

    monkeypatch.setattr(onednn_convolution_passes, "scratch", scratch)
    run(function, tensors(shapes, dtype), "onednn")
    for tensor, size in given:
        assert (tensor.numpy()[size:] == 0x5A).all()
