"""Devices by name."""


import paddle
import pytest

from image_classification import runtime


def test_asking_for_a_gpu_without_one_is_a_user_error():
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(runtime.UserError, match="no GPU"):
        runtime.select_device("gpu")
    with pytest.raises(runtime.UserError, match="DEVICE"):
        runtime.select_device("tpu")
    assert runtime.select_device("auto") == "cpu"
