"""The test device itself: what a program that treats it wrongly gets to see."""

import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.base.framework import EagerParamBase
from paddle.nn import functional as F

from tests.helpers.operands import host_operands

HALVES = ["float16", "bfloat16"]


def run(program):
    """Run a program in a process of its own, with the test device."""
    environment = {**os.environ, "GLOG_minloglevel": "2"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)


def test_cpu_that_reads_device_memory_faults_and_says_so(board):
    done = run("""
import ctypes, paddle
paddle.set_device("npu")
x = paddle.ones([4])
paddle.device.synchronize()
print(ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))[0])
""")
    assert done.returncode != 0
    assert "the CPU touched address" in done.stderr and "memory of the device" in done.stderr


def test_result_read_without_a_wait_is_not_there(board):
    ones = paddle.ones([1000]) * 2
    copy = ones._copy_to(paddle.CPUPlace(), False)  # asynchronous, as nobody should ask for without an event
    assert np.isnan(copy.numpy()).all()
    paddle.device.synchronize()
    assert (copy.numpy() == 2).all()


def test_memory_that_nobody_wrote_is_nan(board):
    assert np.isnan(paddle.empty([1 << 16]).numpy()).all()


def test_waits_that_find_work_are_counted(board):
    x = paddle.ones([8])
    _, kernels, syncs = board.count(lambda: [x + 1 for _ in range(5)], "kernels", "syncs")
    assert (kernels, syncs) == (5, 0)
    _, copies, syncs = board.count(lambda: x.sum().item(), "copies_to_host", "syncs")
    assert (copies, syncs) == (1, 1)
    _, syncs = board.count(paddle.device.synchronize, "syncs")
    assert syncs == 0  # nothing to wait for


def test_tensor_of_the_cpu_mixed_in_is_named_and_counted_as_a_copy(board):
    x, stray = paddle.ones([8]), paddle.to_tensor(np.ones(8, "float32"), place=paddle.CPUPlace())
    with host_operands() as found:
        _, copies = board.count(lambda: [x + stray, x + x, paddle.maximum(x, stray)], "copies_to_device")
    assert copies == 2
    assert found == {"__add__: [8] float32 of the host", "maximum: [8] float32 of the host"}


def test_memory_limit_is_an_error_and_the_device_goes_on(board):
    x = paddle.ones([8])
    board["limit"] = board["used"] + 2**20
    with pytest.raises((OSError, MemoryError, RuntimeError)):
        paddle.ones([2**21])
    board["limit"] = 2**33
    assert paddle.ones([2**21]).sum().item() == 2**21
    assert x.sum().item() == 8


def test_device_that_disappears_fails_from_then_on(board):
    x = paddle.ones([8])
    board["lose_after"] = 2
    with pytest.raises(OSError, match="disappeared"):
        for _ in range(5):
            x = x + 1
    with pytest.raises(OSError):
        x.numpy()


def test_work_goes_on_by_itself_when_the_device_is_not_lazy(board):
    board["lazy"] = 0
    x = paddle.ones([1000])
    for _ in range(100):
        x = x + 1
    assert (x.numpy() == 101).all()


def test_memory_that_is_freed_is_used_again(board):
    x = paddle.ones([2**20])
    x.numpy()
    used = board["used"]
    for _ in range(50):
        x = x + 1
    assert x.numpy()[0] == 51
    assert board["used"] <= used + 2 * 2**22


@pytest.mark.parametrize("dtype", HALVES)
def test_half_kernel_is_the_float32_kernel_rounded_once(board, dtype):
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype("float32") for shape in ([7, 33], [33, 9]))
    paddle.set_device("cpu")
    x, w = (paddle.to_tensor(array).astype(dtype).astype("float32") for array in (x, w))
    image = x.reshape([7, 3, 11, 1])
    functions = {
        "matmul": lambda x, w, image: x @ w,
        "softmax": lambda x, w, image: F.softmax(x),
        "gelu": lambda x, w, image: F.gelu(x),
        "layer_norm": lambda x, w, image: F.layer_norm(x, 33),
        "max_pool2d": lambda x, w, image: F.max_pool2d(image, [2, 1]),
        "transposed": lambda x, w, image: x.t().sum(axis=0),
        "slice": lambda x, w, image: x[1:5, ::2] + 1,
    }
    expected = {name: function(x, w, image).astype(dtype).astype("float32") for name, function in functions.items()}
    given = [tensor.numpy() for tensor in (x, w, image)]
    paddle.set_device("npu")
    x, w, image = (paddle.to_tensor(array).astype(dtype) for array in given)
    for name, function in functions.items():
        result = function(x, w, image)
        assert result.dtype == getattr(paddle, dtype), name
        found = result.astype("float32").numpy()
        np.testing.assert_array_equal(found, expected[name].numpy(), err_msg=name)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["SGD", "Momentum", "Adam", "AdamW", "Lamb"])
def test_master_of_a_half_parameter_gets_the_float32_step_and_the_parameter_its_rounding(board, optimizer, dtype):
    """Against the same optimizer on float32 parameters; the master starts as the half parameter."""
    random = np.random.default_rng(1)
    start = paddle.to_tensor(random.standard_normal([5, 3]).astype("float32")).astype(dtype)
    gradients = [paddle.to_tensor(random.standard_normal([5, 3]).astype("float32")).astype(dtype) for _ in range(3)]

    def train(dtype):
        param = EagerParamBase.from_tensor(start.astype(dtype))
        kind = getattr(paddle.optimizer, optimizer)
        rule = kind(0.1, parameters=[param], multi_precision=dtype != "float32")
        for gradient in gradients:
            param.grad = gradient.astype(dtype)
            rule.step()
        masters = rule.state_dict().get("master_weights", {})
        return param, masters[param.name] if masters else param

    _, expected = train("float32")
    half, master = train(dtype)
    np.testing.assert_array_equal(master.numpy(), expected.numpy())
    np.testing.assert_array_equal(half.astype("float32").numpy(), expected.astype(dtype).astype("float32").numpy())


def test_random_state_of_the_device_can_be_set_back(board):
    paddle.seed(3)
    F.dropout(paddle.ones([100]), 0.5)
    state = paddle.get_rng_state()
    first, second = (paddle.randn([100]).numpy() for _ in range(2))
    paddle.set_rng_state(state)
    np.testing.assert_array_equal(paddle.randn([100]).numpy(), first)
    np.testing.assert_array_equal(paddle.randn([100]).numpy(), second)
    assert not np.array_equal(first, second)


def test_running_statistics_are_updated_in_place(board):
    layer = nn.BatchNorm2D(2)
    x = np.random.default_rng(0).standard_normal([8, 2, 3, 3]).astype("float32") + 1
    layer(paddle.to_tensor(x))
    mean = x.mean(axis=(0, 2, 3))
    np.testing.assert_allclose(layer._mean.numpy(), 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer._variance.numpy(), 0.9 + 0.1 * x.var(axis=(0, 2, 3)), rtol=1e-5)


def test_sequences_have_as_many_numbers_as_their_ends_say(board):
    np.testing.assert_array_equal(paddle.arange(1, 9).numpy(), np.arange(1, 9))
    np.testing.assert_array_equal(paddle.arange(0, 1, 0.25).numpy(), [0, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(paddle.linspace(0, 1, 5).numpy(), [0, 0.25, 0.5, 0.75, 1])
