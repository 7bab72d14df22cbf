"""Element-wise operators by oneDNN where a comparison of numbers does not say all."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from tests.helpers.onednn_cases import MIXED
from tests.helpers.onednn_runs import (
    ALL,
    FLOAT32,
    HALVES,
    Calls,
    assert_within_one_rounding,
    needs_onednn,
    run,
    tensors,
)

pytestmark = needs_onednn


@pytest.mark.parametrize("axis", [[0, 0], [0, -2], [2]], ids=str)
def test_sum_over_axes_that_paddle_refuses_raises_paddles_error(axis):
    with pytest.raises((ValueError, RuntimeError)) as plain:
        paddle.sum(paddle.ones([2, 3]), axis=axis)
    with half_cpu.dispatch(), pytest.raises(plain.type):
        paddle.sum(paddle.ones([2, 3], "bfloat16"), axis=axis)


AT_ZERO = {
    "elu": lambda x: F.elu(x, 0.5),
    "elu, negative": lambda x: F.elu(x, -0.25),
    "celu": lambda x: F.celu(x, 0.5),
    "selu": F.selu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.5),
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 1.0),
    "clip": lambda x: paddle.clip(x, -1.0, 0.0),
    "abs": paddle.abs,
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("function", AT_ZERO.values(), ids=AT_ZERO)
def test_gradient_of_an_activation_at_zero_is_paddles(function, dtype):
    gradients = []
    for own, context in ((FLOAT32, contextlib.nullcontext()), (dtype, half_cpu.dispatch())):
        x = paddle.to_tensor([0.0, -0.0], own)
        x.stop_gradient = False
        with context:
            y = function(x)
        y.backward(paddle.ones_like(y))
        gradients.append(x.grad.astype(FLOAT32).tolist())
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=2.0**-8)  # a factor of SELU is rounded


@pytest.mark.parametrize("dtype", ALL)
def test_activation_inside_paddles_old_layers_is_served_too(dtype, monkeypatch):
    """`paddle.vision`'s densenet asks the legacy table for it."""
    calls = Calls(monkeypatch, "relu")
    (x,) = tensors([(2, 8, 5, 3)], dtype)
    with half_cpu.dispatch(backend="counted"):
        y = paddle._legacy_C_ops.relu(x, "use_cudnn", False)
    assert calls.served == 1
    assert (y.astype(FLOAT32).numpy() == np.maximum(x.astype(FLOAT32).numpy(), 0)).all()


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_tensor_and_float32_parameters_give_float32_in_one_pass(case, dtype, monkeypatch):
    """Widening is exact, so nothing is rounded before the gradient of the half tensor."""
    name, function, shapes = MIXED[case]
    calls = Calls(monkeypatch, name)
    inputs = [*tensors(shapes[:1], dtype), *tensors(shapes[1:], FLOAT32, seed=2)]
    expected, expected_gradients = run(lambda x, *others: function(x.astype(FLOAT32), *others), inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served and actual.dtype == expected.dtype
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), atol=1e-5 * float(expected.abs().max()))
    assert_within_one_rounding(gradients[0], expected_gradients[0])
    for gradient, wanted in zip(gradients[1:], expected_gradients[1:], strict=True):
        np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("special", [0.0, float("inf"), float("nan")])
def test_mean_that_a_policy_wants_in_float32_is_not_rounded(dtype, special):
    (x,) = tensors([(2, 24, 9, 7)], dtype)
    x = x.detach()
    x[0, 3, 2, 1] = special
    x.stop_gradient = False

    class Means:
        def cast(self, op_name, tensors):
            return "float32" if op_name == "mean" else None

    with half_cpu.dispatch(Means()):
        images = x if np.isnan(special) else F.max_pool2d(x, 1)  # whose maximum of NaN is a number
        mean = images.mean(axis=[2, 3], keepdim=True)
        assert mean.dtype == paddle.float32
        mean.sum().backward()
    wide = x.astype(FLOAT32).numpy()
    np.testing.assert_allclose(mean.numpy(), wide.mean((2, 3), keepdims=True, dtype="float64"), rtol=1e-5, atol=1e-6)
    if special == 0:
        np.testing.assert_allclose(x.grad.astype(FLOAT32).numpy(), 1 / 63, rtol=2.0**-8)


def test_policy_that_wants_float32_for_one_operator_gets_it_from_its_kernel_alone():
    """A sum that a user puts on the black list is float32, whatever its kernel could do."""
    x, y, s = tensors([(3, 5, 33), (3, 5, 33), (33,)])

    class Sums:
        def cast(self, op_name, tensors):
            return "float32" if op_name == "add" else None

    with half_cpu.dispatch(Sums()):
        assert layers.residual(x, y, s).dtype == paddle.float32
        assert layers.residual(x.astype(FLOAT32), y, s).dtype == paddle.float32


@pytest.mark.parametrize("operator", [paddle.add, paddle.multiply])
@pytest.mark.parametrize("shape", [[1, 3, 1, 5], [1, 3, 4, 5], [3, 4, 5], [1, 3, 1, 1], [1, 1, 4, 5]])
def test_row_of_images_that_lie_channels_last_is_read_in_its_own_order(operator, shape):
    images, row = paddle.randn([2, 4, 5, 3]), paddle.randn(shape)
    results = []
    for context in (contextlib.nullcontext(), half_cpu.dispatch()):
        row.stop_gradient = False
        with context:
            out = operator(images.transpose([0, 3, 1, 2]), row)
            (out * out).sum().backward()
        results.append((out.numpy(), row.grad.numpy()))
        row.clear_gradient(False)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # sums of at most 40 float32 numbers
