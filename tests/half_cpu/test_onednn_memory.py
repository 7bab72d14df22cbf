"""Casts and rearrangements by oneDNN, and the order in which feature maps lie in memory."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.half_cpu import copies, onednn, onednn_library, onednn_memory
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.onednn_runs import ALL, BFLOAT16, FLOAT32, HALVES, needs_onednn, tensors

pytestmark = needs_onednn


def test_cast_to_bfloat16_equals_paddle_bit_for_bit():
    values = np.concatenate([
        np.random.default_rng(0).standard_normal(1000).astype("float32") * 10.0 ** np.arange(-30, 20).repeat(20),
        [0.0, -0.0, np.inf, -np.inf, 3.3895e38, 1.00390625, 1.01171875],  # largest, and ties to even
    ]).astype("float32")
    x = paddle.to_tensor(values)
    result = onednn.KERNELS["cast"](None, (x, paddle.bfloat16), {})
    assert (result.view("int16").numpy() == x.astype(BFLOAT16).view("int16").numpy()).all()
    back = onednn.KERNELS["cast"](None, (result, paddle.float32), {})
    assert (back.numpy() == result.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("whole", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_cast_of_many_whole_numbers_equals_paddle_bit_for_bit(whole, dtype):
    """Those between two float32 numbers and beyond float16's largest, too; NumPy's rounds int64 to float16 at once."""
    size = 2 if whole == "bool" else 1 << 8 * np.dtype(whole).itemsize - (whole != "uint8")
    values = np.random.default_rng(0).integers(0 if whole in ("bool", "uint8") else -size, size, 1 << 15)
    values[::2] >>= np.random.default_rng(1).integers(0, 64, 1 << 14)  # small ones among them
    x = paddle.to_tensor(values.astype(whole)).reshape([64, -1]).t()
    with half_cpu.dispatch():
        result = x.astype(dtype)
        assert onednn.KERNELS["cast"](paddle.cast, (x, getattr(paddle, dtype)), {}) is not NotImplemented
    assert (result.view("int16").numpy() == x.astype(dtype).view("int16").numpy()).all()
    assert result.stop_gradient and result.shape == x.shape


@pytest.mark.parametrize(
    "split, order, shape",
    [([3, 6], [1, 0], [18]), ([3, 5], [1, 0], [16]), ([3, 5], [0, 0], [15]), ([3, 5], [1], [15])],
)
def test_rearrange_that_does_not_fit_is_refused_as_paddle_refuses_it(split, order, shape):
    """The kernel reads memory by these numbers, so it must not take wrong ones."""
    (x,) = tensors([(3, 5)])
    with half_cpu.dispatch(backend="onednn"), pytest.raises(ValueError):
        layers.rearrange(x, split, order, shape)


@pytest.mark.parametrize("dtype", ALL)
def test_cast_of_a_feature_map_keeps_its_memory_order(dtype):
    """Otherwise a bias that `auto` adds in float32 would send every feature map back to [B, C, H, W]."""
    (x,) = tensors([(2, 9, 7, 8)], dtype)
    features = x.transpose([0, 3, 1, 2])
    other = BFLOAT16 if dtype == FLOAT32 else FLOAT32
    result = onednn.KERNELS["cast"](None, (features, getattr(paddle, other)), {})
    assert result.strides == features.strides
    assert (result.numpy() == features.astype(other).numpy()).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_cast_of_a_feature_map_to_its_own_format_is_a_copy_in_its_order(dtype):
    """Paddle's copies number by number, to [B, C, H, W]; its dropout of whole samples ends with two of them."""
    (x,) = tensors([(2, 9, 7, 8)], dtype)
    features = x.transpose([0, 3, 1, 2])
    with half_cpu.dispatch():
        result = paddle.cast(features, dtype)
    assert result.strides == features.strides and result.data_ptr() != features.data_ptr()
    assert (result.astype(FLOAT32).numpy() == features.astype(FLOAT32).numpy()).all()
    result.backward(features.detach())
    assert (x.grad.astype(FLOAT32).numpy() == x.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("count", [1, 31, 16384, 16387, 100_003])  # in one part, and in several, of whole lines and not
@pytest.mark.parametrize("dtype", ALL)
def test_dense_copy_has_every_number_and_none_beside(dtype, count):
    (x,) = tensors([(count,)], dtype)
    whole = paddle.full([count + 2], 7, dtype)
    with half_cpu.dispatch(), paddle.no_grad():
        onednn_memory.convert(x, whole[1:-1])
    assert (whole[1:-1].astype(FLOAT32).numpy() == x.astype(FLOAT32).numpy()).all()
    assert whole[0] == whole[-1] == 7


@pytest.mark.parametrize("dtype", ALL)
def test_operator_without_a_kernel_gets_dense_images_and_returns_the_gradient_in_their_order(dtype):
    """Paddle's operators would copy strided images element by element, and layers before would rearrange gradients."""
    x, weight = tensors([(2, 8, 9, 7), (16, 8, 3, 3)], dtype)
    orders = []
    with half_cpu.dispatch(backend="onednn"):
        features = F.conv2d(x, weight)
        features.register_hook(lambda gradient: orders.append(gradient.strides))
        out = paddle.atan(features)
    out.backward(paddle.ones_like(out))
    assert out.is_contiguous() and orders == [features.strides]
    with half_cpu.dispatch(backend="reference"):
        expected = paddle.atan(features.detach().contiguous())
    assert (out.astype(FLOAT32).numpy() == expected.astype(FLOAT32).numpy()).all()


def test_convolution_results_lie_channels_last_and_read_as_ordinary_tensors():
    x, weight = tensors([(2, 8, 9, 7), (16, 8, 3, 3)])
    with half_cpu.dispatch():
        out = F.conv2d(x, weight)
    assert out.shape == [2, 16, 7, 5] and out.strides == [7 * 5 * 16, 1, 5 * 16, 16]
    flat = out.astype(FLOAT32).flatten(1)
    np.testing.assert_array_equal(flat.numpy(), out.astype(FLOAT32).numpy().reshape(2, -1))


@pytest.mark.parametrize(
    ("data_type", "shape", "source", "target", "expected"),
    [
        (onednn_library.FLOAT32, (8, 196, 768), (196 * 768, 768, 1), (196 * 768, 1, 196), True),
        (onednn_library.FLOAT16, (8, 64, 7, 7), (64 * 49, 49, 7, 1), (64 * 49, 1, 7 * 64, 64), True),
        (onednn_library.FLOAT32, (8, 3, 56, 56), (3 * 56 * 56, 56 * 56, 56, 1), (3 * 56 * 56, 1, 56 * 3, 3), False),
        (onednn_library.BFLOAT16, (50, 2, 58), (116, 58, 1), (116, 1, 2), True),
        (onednn_library.FLOAT32, (50, 2, 58), (116, 58, 1), (116, 1, 2), False),
        (onednn_library.BFLOAT16, (50, 4, 16), (64, 16, 1), (64, 1, 4), False),
        (onednn_library.FLOAT32, (8, 197, 3, 64), (197 * 192, 192, 64, 1), (197 * 64, 64, 8 * 197 * 64, 1), False),
        (onednn_library.FLOAT32, (64, 32), (0, 1), (1, 64), False),
    ],
    ids=["transposed", "to rows", "three channels", "half pairs", "pairs", "few", "heads", "expanded"],
)
def test_copies_are_the_kernels_where_onednn_takes_longer(data_type, shape, source, target, expected):
    """What was measured; the kernel takes strides of 0 for zeros."""
    assert copies.is_compiled(Layout(data_type, shape, source), Layout(data_type, shape, target)) == expected
