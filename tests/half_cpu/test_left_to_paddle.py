"""half_cpu.left_to_paddle: which calls are Paddle's own; they are its bits, in the memory order that images have."""

import contextlib
from types import SimpleNamespace

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import paddle_names
from image_classification.half_cpu.left_to_paddle import EXACT, SMALL, rules
from image_classification.half_cpu.scope import active
from tests.helpers.onednn_runs import needs_onednn
from tests.helpers.policies import Policy

OPERATORS = paddle_names.OPERATORS
LARGE = [2, 8, 64, SMALL // 1024 + 1]
FUNCTIONS = {
    "relu": (),
    "relu6": (),
    "leaky_relu": (0.1,),
    "hardtanh": (-0.5, 0.5),
    "hardswish": (),
    "hardsigmoid": (0.2, 0.4),
    "softsign": (),
    "clip": (-0.5, 0.5),
    "abs": (),
    "square": (),
    "sqrt": (),
    "rsqrt": (),
    "scale": (2.0, 1.0, True),
}


def images(shape, seed=0):
    """Return (positive images [B, C, H, W] that lie as [B, H, W, C], the same dense); both want gradients."""
    paddle.seed(seed)
    batch, channels, height, width = shape
    leaf = paddle.rand([batch, height, width, channels]) + 0.01
    strided, dense = leaf.transpose([0, 3, 1, 2]), leaf.transpose([0, 3, 1, 2]).contiguous().detach()
    strided.stop_gradient = dense.stop_gradient = False
    return strided, dense


def left(name, threads, *args):
    """Return the result of a rule, NotImplemented where a kernel is asked."""
    return rules(threads)[name](getattr(OPERATORS, name), args, {})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_left_to_paddle_has_its_bits_and_the_memory_order_of_images(name):
    strided, dense = images([2, 3, 4, 5])
    results = []
    for x in (strided, dense):
        result = left(name, 2, x, *FUNCTIONS[name])
        assert result.strides == x.strides
        (result * result).sum().backward()
        results.append((result.numpy(), x.grad.numpy()))
    np.testing.assert_array_equal(*(result for result, _ in results))
    np.testing.assert_array_equal(*(gradient for _, gradient in results))
    np.testing.assert_array_equal(results[1][0], getattr(OPERATORS, name)(dense, *FUNCTIONS[name]).numpy())


PLACES = np.random.default_rng(2).integers(0, 3, 40)
# the further arguments of each, and how many of the tensors it takes
RECORDED = {
    "relu": (1,), "hardsigmoid": (1, 0.2, 0.4), "add": (2,), "subtract": (2,), "multiply": (2,),
    "gather": (1, paddle.to_tensor(PLACES), 0), "index_select": (1, paddle.to_tensor(PLACES), 1),
}  # fmt: skip


def recorder():
    """Return what hears of all calls and notes none."""
    return SimpleNamespace(called=lambda *call: None, allocated=lambda tensor: None)


@needs_onednn
@pytest.mark.parametrize("name", EXACT)
def test_kernel_of_what_is_left_to_paddle_unless_recorded_has_its_bits(name, monkeypatch):
    """Also where signs of zeros, infinities and what is no number meet; one that is none may have other bits."""
    count, *further = RECORDED[name]
    numbers = np.random.default_rng(0).standard_normal([2, 3, 7000]).astype("float32") * 4
    numbers[:, 0, :9] = [0.0, -0.0, 3.0, -3.0, np.inf, -np.inf, np.nan, 1e-40, 3e38], [-0.0] * 4 + [np.inf] * 5
    found = []
    kernel = half_cpu.kernels.find("onednn").kernels[name]
    for call in (getattr(OPERATORS, name), lambda *args: kernel(None, args, {})):
        tensors = [paddle.to_tensor(one) for one in numbers[:count]]
        for tensor in tensors:
            tensor.stop_gradient = False
        result = call(*tensors, *further)
        gradient = np.random.default_rng(1).standard_normal(result.shape).astype("float32")
        result.backward(paddle.to_tensor(gradient))
        found.append([one.numpy() for one in (result, *(tensor.grad for tensor in tensors))])
        monkeypatch.setattr(active, "recorder", recorder())
    for own, expected in zip(*found, strict=True):
        same = own.view("int32") == expected.view("int32")
        assert (same | np.isnan(own) & np.isnan(expected)).all()


@needs_onednn
@pytest.mark.parametrize("name", EXACT)
def test_call_that_is_recorded_is_not_left_to_paddle(name, monkeypatch):
    count, *further = RECORDED[name]
    args = *[paddle.ones([3, 4])] * count, *further
    assert left(name, 1, *args) is not NotImplemented
    monkeypatch.setattr(active, "recorder", recorder())
    assert left(name, 1, *args) is NotImplemented


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
def test_pair_left_to_paddle_has_its_bits_and_the_memory_order_of_images(name):
    pairs = zip(images([2, 3, 4, 5]), images([2, 3, 4, 5], seed=1), strict=True)
    (strided, other), (dense, dense_other) = pairs
    result, expected = left(name, 1, strided, other), getattr(OPERATORS, name)(dense, dense_other)
    assert result.strides == strided.strides
    np.testing.assert_array_equal(result.numpy(), expected.numpy())
    assert left(name, 1, strided, dense_other) is NotImplemented  # Paddle would copy the first element by element


@pytest.mark.parametrize("name", [*FUNCTIONS, "add", "subtract", "multiply"])
def test_gradient_of_images_that_a_hook_keeps_is_not_written_by_what_follows(name):
    """Paddle's gradients write into what comes back where they believe that nobody has it."""
    strided, _ = images([2, 3, 4, 5])
    result, kept = left(name, 1, strided, *FUNCTIONS.get(name, (images([2, 3, 4, 5], seed=1)[0],))), []
    result.retain_grads()
    result.register_hook(kept.append)
    weight, one = paddle.randn(result.shape), paddle.eye(3).reshape([3, 3, 1, 1])
    with half_cpu.dispatch():
        (F.conv2d(result, one) * weight).sum().backward()
    for gradient in (result.grad, *kept):
        np.testing.assert_array_equal(gradient.numpy(), weight.numpy())


def test_large_tensors_are_left_to_paddle_where_it_is_as_fast_with_these_threads():
    images_last, x = images(LARGE)
    fixed = x.detach()
    for threads, tensor, expected in (
        (1, x, {"relu6"}),
        (1, fixed, {"relu6", "relu"}),
        (2, x, set()),
        (2, fixed, set()),
    ):
        found = {name for name in ("relu6", "relu") if left(name, threads, tensor) is not NotImplemented}
        assert found == expected, (threads, tensor.stop_gradient)
    assert left("square", 1, x) is not NotImplemented  # a leaf's gradients are summed as ever
    assert left("square", 1, paddle.concat([x] * 4)) is NotImplemented
    assert left("relu", 1, images_last.detach()) is NotImplemented
    with paddle.no_grad():
        assert left("relu", 1, x) is not NotImplemented
        assert left("add", 2, x, x) is not NotImplemented
    assert left("add", 2, fixed, fixed) is not NotImplemented
    assert left("add", 2, fixed, x) is NotImplemented
    tokens = x.flatten(2)
    for name, threads, expected in (("add", 2, True), ("add", 3, False), ("multiply", 1, False)):
        assert (left(name, threads, tokens, tokens) is not NotImplemented) is expected, (name, threads)
    assert left("add", 1, x, x) is NotImplemented


def test_what_a_kernel_serves_is_not_left_to_paddle():
    dense = images([2, 3, 4, 5])[1]
    half, turned = dense.astype("float16"), dense.transpose([1, 0, 2, 3])
    for tensor in (half, turned):
        assert left("relu6", 1, tensor) is NotImplemented
        assert left("add", 1, tensor, tensor) is NotImplemented
    assert left("add", 1, dense, dense[:1]) is NotImplemented
    assert left("add", 1, dense, half) is NotImplemented
    index = paddle.to_tensor([1, 0])
    assert left("gather", 1, half, index, 0) is NotImplemented
    assert left("gather", 1, dense, index, 0) is not NotImplemented
    assert left("embedding", 1, index, dense[0, 0].astype("bfloat16"), -1, False) is NotImplemented
    assert left("embedding", 1, index, dense[0, 0], -1, False).shape == [2, 5]
    assert left("expand", 1, dense, [2, 3, 4, 5]) is NotImplemented
    assert left("expand", 1, dense.detach(), [2, 3, 4, 5]) is not NotImplemented


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_a_weight_are_left_to_paddle_where_it_copies_the_bits(dtype, monkeypatch):
    index, bits = paddle.to_tensor([3, 0, 3]), np.random.default_rng(0).integers(-(1 << 15), 1 << 15, [4, 6], np.int16)
    weight = paddle.to_tensor(bits).view(dtype)  # NaN and inf among them
    rows = left("embedding", 1, index, weight, -1, False).view("int16")
    np.testing.assert_array_equal(rows.numpy(), paddle.to_tensor(bits).numpy()[[3, 0, 3]])
    if dtype != "float32":
        assert left("embedding", 1, index, weight.t(), -1, False) is NotImplemented
        monkeypatch.setattr(active, "recorder", recorder())
        assert left("embedding", 1, index, weight, -1, False) is NotImplemented


def test_policy_is_asked_before_a_call_is_left_to_paddle():
    x = paddle.ones([4])
    with half_cpu.dispatch(Policy(relu6="float16")):
        assert F.relu6(x).dtype == paddle.float16
        assert F.relu(x).dtype == paddle.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_slope_of_leaky_relu_at_zero_is_paddles_where_a_kernel_serves(dtype):
    slopes = []
    for name, context in (("float32", contextlib.nullcontext()), (dtype, half_cpu.dispatch())):
        x = paddle.concat([paddle.zeros([2 * SMALL]), -paddle.zeros([1]), paddle.ones([1]), -paddle.ones([1])])
        x = x.astype(name)
        x.stop_gradient = False
        with context:
            result = F.leaky_relu(x, 0.25)
        paddle.autograd.backward([result], [paddle.ones_like(result)])
        slopes.append(x.grad.astype("float32").numpy())
    np.testing.assert_array_equal(*slopes)
