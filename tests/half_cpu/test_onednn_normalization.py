"""Norms by oneDNN beside Paddle's."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.onednn_runs import ALL, BFLOAT16, FLOAT32, needs_onednn, run, statistics, tensors

pytestmark = needs_onednn


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_softmax_over_another_axis_is_paddles(dtype):
    (x,) = tensors([(3, 5, 33)])
    (expected,) = tensors([(3, 5, 33)], FLOAT32)
    with half_cpu.dispatch(backend="onednn"):
        result = F.softmax(x.detach().astype(dtype), axis=1).astype(FLOAT32)
    expected = F.softmax(expected.detach().astype(dtype).astype(FLOAT32), axis=1)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), atol=2.0**-9)  # one rounding to bfloat16, below 1


@pytest.mark.parametrize("dtype", ALL)
def test_group_norm_without_parameters_has_the_gradient_of_ones_and_zeros(dtype):
    """Paddle's own float32 kernel gets it wrong."""
    inputs = tensors([(2, 6, 35)], dtype)
    actual, (gradient,) = run(lambda x: F.group_norm(x, 3), inputs, "onednn")
    parameters = paddle.ones([6], dtype), paddle.zeros([6], dtype)
    expected, (other,) = run(lambda x: F.group_norm(x, 3, 1e-5, *parameters), inputs, "onednn")
    assert (actual.astype(FLOAT32).numpy() == expected.astype(FLOAT32).numpy()).all()
    assert (gradient.astype(FLOAT32).numpy() == other.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("dtype", ALL)
def test_batch_norm_updates_the_running_statistics_as_paddle_does(dtype):
    results = []
    for backend in ("reference", "onednn"):
        x, scale, shift = tensors([(4, 8, 5, 3), (8,), (8,)], dtype)
        mean, variance = statistics(8)
        with half_cpu.dispatch(backend=backend):
            F.batch_norm(x, mean, variance, scale.astype(FLOAT32), shift.astype(FLOAT32), training=True, momentum=0.8)
        results.append((mean.numpy(), variance.numpy()))
    for actual, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)  # sums of 60 float32 terms


def test_batch_norm_statistics_of_channels_far_from_zero_do_not_cancel():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 7, 11, 20)) * generator.uniform(0.5, 2, 20) + np.linspace(-1000, 1000, 20)
    images[..., 5] = 1e20  # a constant whose square is inf
    images = images.astype("float32")
    mean, variance = paddle.zeros([20]), paddle.ones([20])
    with half_cpu.dispatch(backend="onednn"):
        x = paddle.to_tensor(images).transpose([0, 3, 1, 2])
        F.batch_norm(x, mean, variance, paddle.ones([20]), paddle.zeros([20]), training=True, momentum=0.0)
    exact = images.astype("float64")
    np.testing.assert_allclose(mean.numpy(), exact.mean((0, 1, 2)), rtol=1e-6)  # float32 numbers: 1e-7 apart
    np.testing.assert_allclose(variance.numpy(), exact.var((0, 1, 2)), rtol=1e-4)  # 1e-7 * 1000 of one deviation
