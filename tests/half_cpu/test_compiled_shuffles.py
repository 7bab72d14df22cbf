"""Shuffles move every bit, in the memory order of the images, forward and backward."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.onednn_runs import ALL, needs_onednn

pytestmark = needs_onednn
SHUFFLES = [
    (lambda x: F.pixel_shuffle(x, 2), (2, 180, 5, 7)),
    (lambda x: F.pixel_shuffle(x, 3), (2, 18, 5, 7)),
    (lambda x: F.pixel_unshuffle(x, 3), (2, 6, 6, 9)),
    (lambda x: F.channel_shuffle(x, 3), (2, 36, 5, 7)),
]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("shuffle", "shape"), SHUFFLES)
def test_shuffle_is_paddles_bit_for_bit_and_keeps_the_memory_order(shuffle, shape, is_last, dtype):
    values = paddle.randn(shape).astype(dtype).astype("float32")
    values.stop_gradient = False
    expected = shuffle(values)
    gradient = paddle.randn(expected.shape).astype(dtype)
    expected.backward(gradient.astype("float32"))
    memory = values.numpy().transpose(0, 2, 3, 1) if is_last else values.numpy()
    leaf = paddle.to_tensor(np.ascontiguousarray(memory)).astype(dtype)
    leaf.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        result = shuffle(leaf.transpose([0, 3, 1, 2]) if is_last else leaf)
    assert result.is_contiguous() != is_last
    result.backward(gradient)
    actual = leaf.grad.transpose([0, 3, 1, 2]) if is_last else leaf.grad
    np.testing.assert_array_equal(result.astype("float32").numpy(), expected.numpy())
    np.testing.assert_array_equal(actual.astype("float32").numpy(), values.grad.numpy())


def test_shuffle_that_does_not_divide_the_channels_is_refused_in_paddles_words():
    with half_cpu.dispatch(backend="onednn"), pytest.raises(ValueError, match="square of upscale_factor"):
        F.pixel_shuffle(paddle.ones([1, 6, 2, 2], "bfloat16"), 2)
