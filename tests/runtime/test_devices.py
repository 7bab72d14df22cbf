"""Devices by name."""


import paddle
import pytest

from image_classification import runtime


def test_asking_for_a_gpu_without_one_is_a_user_error():
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(runtime.UserError, match="no GPU; use -device=cpu, or -opts DEVICE=cpu"):
        runtime.select_device("gpu")
    with pytest.raises(runtime.UserError, match="DEVICE"):
        runtime.select_device("tpu")
    assert runtime.select_device("auto") == "cpu"


def test_kind_is_known_before_paddle_is_imported(monkeypatch):
    monkeypatch.delenv("CUSTOM_DEVICE_ROOT", raising=False)
    assert runtime.expected_kind("npu:1") == "npu"
    assert runtime.visible("cpu") == 1
    if not paddle.is_compiled_with_cuda():
        assert runtime.expected_kind("auto") == "cpu" and runtime.visible("gpu") == 0


@pytest.mark.parametrize("name", ["gpu:x", "cpu:0", "npu", ""])
def test_device_that_nobody_brings_is_a_user_error(name):
    with pytest.raises(runtime.UserError, match="DEVICE"):
        runtime.select_device(name)


def test_failure_of_a_device_is_one_line_and_others_are_none():
    out_of_memory = "\n\n----\nError Message Summary:\n----\nResourceExhaustedError: \n\nOut of memory error on GPU 0."
    assert runtime.failure_of(MemoryError(out_of_memory)).startswith("ResourceExhaustedError")
    lost = OSError("(External) CUDA error(719), unspecified launch failure. (at /paddle/x.cc:1)\n")
    assert runtime.failure_of(lost) == "(External) CUDA error(719), unspecified launch failure."
    assert runtime.failure_of(OSError(2, "No such file or directory")) is None


def test_kernels_are_read_from_the_registry():
    assert runtime.has_kernel("momentum", "cpu", "float32")
    assert not runtime.has_kernel("momentum", "cpu", "bfloat16")
    assert runtime.has_kernel("add", "cpu", "float32")  # listed as elementwise_add
    assert not runtime.has_kernel("no_such_kernel", "cpu", "float32")
