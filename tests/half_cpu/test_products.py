"""Policies that round the operands of products themselves: float8 and blocks, forward and backward.

The reference is NumPy alone: its own float8 rounding, and products written out as sums.
"""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu


def round_float8(values, mantissa_bits, smallest_exponent, largest):
    """Return float64 values rounded to nearest even to so many mantissa bits, and to `largest` beyond it."""
    values = np.asarray(values, np.float64)
    exponents = np.maximum(np.floor(np.log2(np.abs(np.where(values == 0, 1, values)))), smallest_exponent)
    step = 2.0 ** (exponents - mantissa_bits)
    return np.clip(np.round(values / step) * step, -largest, largest)  # np.round: ties to even


def e4m3(values):
    return round_float8(values, 3, -6, 448.0)


def e5m2(values):
    return round_float8(values, 2, -14, 57344.0)


class Float8:
    """Activations and weights through E4M3, gradients through E5M2; the layers kept wide are named by identity."""

    def __init__(self, *kept):
        self.kept = kept
        self.seen = []

    def cast(self, op_name, tensors):
        return self.quantised if op_name in ("linear", "conv2d", "matmul") else None

    def quantised(self, tensor, operand):
        self.seen.append(operand)
        if any(operand.layer is layer for layer in self.kept):
            return tensor
        name, largest = ("float8_e5m2", 57344.0) if operand.role == "gradient" else ("float8_e4m3fn", 448.0)
        wide = tensor.astype("float32")
        rounded = wide.clip(-largest, largest).astype(name).astype("float32")
        # Paddle's cast would turn inf and NaN into the largest number, and no finite check would find them.
        return paddle.where(paddle.isfinite(wide), rounded, wide)


def leaf(shape, seed, scale=1.0):
    tensor = paddle.to_tensor((np.random.default_rng(seed).standard_normal(shape) * scale).astype("float32"))
    tensor.stop_gradient = False
    return tensor


def numbers(*tensors):
    return [tensor.astype("float64").numpy() for tensor in tensors]


def assert_close(actual, expected):
    # Sums of at most 200 products of float8 numbers in float32, against float64: 2^-16 of the largest value.
    np.testing.assert_allclose(actual.astype("float64").numpy(), expected, rtol=0, atol=2**-16 * np.abs(expected).max())


def test_linear_through_float8_equals_numpy_forward_and_backward():
    x, weight, bias = leaf((3, 5, 32), 0, 40), leaf((32, 16), 1, 0.01), leaf((16,), 2)
    gradient = leaf((3, 5, 16), 3, 30)
    with half_cpu.dispatch(Float8()):
        result = F.linear(x, weight, bias)
    result.backward(gradient)
    x_, weight_, bias_, gradient_ = numbers(x, weight, bias, gradient)
    assert_close(result, e4m3(x_) @ e4m3(weight_) + bias_)
    assert_close(x.grad, e5m2(gradient_) @ e4m3(weight_).T)
    assert_close(weight.grad, e4m3(x_).reshape(-1, 32).T @ e5m2(gradient_).reshape(-1, 16))
    assert_close(bias.grad, gradient_.sum((0, 1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolution_through_float8_equals_numpy_forward_and_backward(dtype):
    """Patches side by side make the convolution a product of matrices."""
    x, weight = leaf((2, 3, 8, 8), 0).astype(dtype).detach(), leaf((6, 3, 4, 4), 1).astype(dtype).detach()
    x.stop_gradient = weight.stop_gradient = False
    gradient = leaf((2, 6, 2, 2), 2).astype(dtype)
    policy = Float8()
    with half_cpu.dispatch(policy):
        result = F.conv2d(x, weight, stride=4)
    result.backward(gradient.astype(result.dtype))
    x_, weight_, gradient_ = numbers(x, weight, gradient)
    patches = x_.reshape(2, 3, 2, 4, 2, 4).transpose(0, 2, 4, 1, 3, 5).reshape(8, 48)
    filters, rows = weight_.reshape(6, 48), gradient_.transpose(0, 2, 3, 1).reshape(8, 6)
    expected = (e4m3(patches) @ e4m3(filters).T).reshape(2, 2, 2, 6).transpose(0, 3, 1, 2)
    patch_gradient = (e5m2(rows) @ e4m3(filters)).reshape(2, 2, 2, 3, 4, 4).transpose(0, 3, 1, 4, 2, 5)
    weight_gradient = (e5m2(rows).T @ e4m3(patches)).reshape(6, 3, 4, 4)
    assert result.dtype == paddle.float32  # what the policy's function returned decides
    assert_close(result, expected)
    assert x.grad.dtype == weight.grad.dtype == x.dtype
    if dtype == "float32":
        assert_close(x.grad, patch_gradient.reshape(2, 3, 8, 8))
        assert_close(weight.grad, weight_gradient)
    else:  # and each gradient is rounded to its tensor's dtype
        np.testing.assert_allclose(x.grad.astype("float32"), patch_gradient.reshape(2, 3, 8, 8), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_float8_policy_lets_a_finite_check_see_inf_and_nan(value):
    x = paddle.to_tensor([[value, 1.0]], dtype="float32")
    assert np.isfinite(float(x.astype("float8_e4m3fn").astype("float32")[0, 0])), "Paddle's cast saturates no longer"
    with half_cpu.dispatch(Float8()):
        assert not np.isfinite(F.linear(x, paddle.ones([2, 1])).item())


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv2D(3, 4, 3)
        self.head = paddle.nn.Linear(4, 2)

    def forward(self, images):
        x = self.conv(images).mean([2, 3])
        scores = paddle.matmul(x, x, transpose_y=True)
        return self.head(x).sum() + scores.sum()


def test_operand_names_role_index_layer_and_summed_axis_of_all_three_products():
    net, policy = Net(), Float8()
    images = leaf((2, 3, 5, 5), 0)
    with half_cpu.dispatch(policy):
        loss = net(images)
    assert policy.seen == [
        ("activation", 0, net.conv, 1), ("weight", 1, net.conv, 1),
        ("activation", 0, net, -1), ("activation", 1, net, -1),
        ("activation", 0, net.head, -1), ("weight", 1, net.head, 0),
    ]  # fmt: skip
    policy.seen.clear()
    loss.backward()
    by_layer = {layer: [operand for operand in policy.seen if operand.layer is layer] for layer in (net.conv, net.head)}
    assert by_layer[net.head] == [
        ("weight", 1, net.head, 1), ("gradient", 0, net.head, -1),
        ("activation", 0, net.head, -2), ("gradient", 0, net.head, -2),
    ]  # fmt: skip
    assert by_layer[net.conv] == [
        ("weight", 1, net.conv, 0), ("gradient", 0, net.conv, 1),
        ("activation", 0, net.conv, 0), ("gradient", 0, net.conv, 0),
    ]  # fmt: skip
    assert images.grad is not None and net.conv.weight.grad is not None


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_summed_axes_of_matmul_are_those_of_equal_length(transposed):
    """M, K and N differ, so the lengths of the axes name them."""
    shapes = [(2, 5, 3) if transposed[0] else (2, 3, 5), (2, 7, 5) if transposed[1] else (2, 5, 7)]
    x, y = leaf(shapes[0], 0), leaf(shapes[1], 1)
    lengths = []

    class Policy:
        def cast(self, op_name, tensors):
            return self.noted if op_name == "matmul" else None

        def noted(self, tensor, operand):
            lengths.append(tensor.shape[operand.axis])
            return tensor

    with half_cpu.dispatch(Policy()):
        result = paddle.matmul(x, y, *transposed)
    result.sum().backward()
    assert lengths == [5, 5, 7, 7, 3, 3]
    gradients = x.grad.numpy(), y.grad.numpy()
    x.clear_grad(), y.clear_grad()
    paddle.matmul(x, y, *transposed).sum().backward()
    for ours, paddles in zip(gradients, (x.grad, y.grad), strict=True):
        np.testing.assert_allclose(ours, paddles.numpy(), rtol=0, atol=1e-5)  # sums of 7 float32 terms


def test_policy_keeps_one_layer_by_its_identity():
    first, second = paddle.nn.Linear(4, 4, bias_attr=False), paddle.nn.Linear(4, 4, bias_attr=False)
    x = leaf((2, 4), 0)
    with half_cpu.dispatch(Float8(second)):
        quantised, kept = first(x), second(x)
    assert_close(quantised, e4m3(x.numpy()) @ e4m3(first.weight.numpy()))
    np.testing.assert_allclose(kept.numpy(), x.numpy() @ second.weight.numpy(), rtol=0, atol=1e-6)
    assert not second.weight.stop_gradient


def test_policy_answer_that_no_product_takes_is_an_error_that_names_the_operator():
    class Policy:
        def cast(self, op_name, tensors):
            return lambda tensor, operand: tensor

    with half_cpu.dispatch(Policy()), pytest.raises(ValueError, match="'softmax'.*linear"):
        F.softmax(paddle.ones([3]))
