"""tools/kernels.json is what the modes really run: recorded here, compared, and written anew with UPDATE_KERNELS=1."""

import ctypes
import json
import os

import paddle
import pytest

from image_classification import amp
from image_classification.config import build_config
from image_classification.config.schema import OPTIMIZERS
from image_classification.optim import build_optimizer
from image_classification.runtime import kernel_registry
from tests.device.conftest import DEVICE
from tests.device.test_models import train_step
from tests.helpers.model_tools import tool
from tests.helpers.model_zoo import FOLDERS

check = tool("check_kernels")
HALF_MODES = ("auto", "O1", "O2", "O3", "naive")
MODES = [("fp32", None), *((mode, dtype) for mode in HALF_MODES for dtype in ("float16", "bfloat16"))]


def ran(library):
    library.testdev_ran.restype = ctypes.c_char_p
    return {tuple(line.split()) for line in library.testdev_ran().decode().splitlines()}


def one_step(optimizer_name, precision):
    """Return what a step of a linear layer did."""
    model = precision.convert_model(paddle.nn.Linear(4, 3))
    config = build_config([("test", {"TRAIN": {"OPTIMIZER": {"NAME": optimizer_name}, "GRAD_CLIP": 1.0}})])
    optimizer = build_optimizer(precision.master_params(model), config.TRAIN, set())
    with precision.forward_context():
        loss = model(paddle.ones([2, 4])).astype("float32").mean()
    precision.backward(loss)
    return precision.step(optimizer)


def record(library, mode, dtype):
    """Return {kernel: [dtypes]} of a training step of every family, and of every optimizer, in a mode."""
    ran(library)
    options = {"init_scale": 128.0} if dtype == "float16" else {}
    for folder in FOLDERS:
        precision = amp.build_precision(mode, dtype=dtype, device=DEVICE, options=options)
        train_step(DEVICE, folder, precision)
    for name in OPTIMIZERS:
        one_step(name, amp.build_precision(mode, dtype=dtype, device=DEVICE, options=options))
    kernels = {}
    for name, dtype_name in sorted(ran(library)):
        if dtype_name in ("float16", "bfloat16", "float32", "float64"):
            kernels.setdefault(name, []).append(dtype_name)
    return kernels


def in_lines(found):
    """Return the kernels of the modes as JSON with a line for each."""
    modes = []
    for mode, kernels in found.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in kernels.items())
        modes.append(f"{json.dumps(mode)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(modes) + "\n}\n"


@pytest.mark.parametrize("mode", ["fp32", "O2"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_on_the_device(board, name, mode):
    dtype = None if mode == "fp32" else "bfloat16"
    assert one_step(name, amp.build_precision(mode, dtype=dtype, device=DEVICE)).applied


@pytest.mark.slow
def test_recorded_kernels_are_those_of_the_modes(board, _library):
    found = {f"{mode} {dtype or 'float32'}": record(_library, mode, dtype) for mode, dtype in MODES}
    if os.environ.get("UPDATE_KERNELS"):
        check.NEEDED.write_text(in_lines(found))
    assert found == json.loads(check.NEEDED.read_text()), "write it anew: UPDATE_KERNELS=1"


def test_registry_of_the_test_device_has_what_every_mode_needs(board):
    registry = kernel_registry()
    for mode, needed in json.loads(check.NEEDED.read_text()).items():
        assert check.missing(registry, needed, DEVICE) == [], mode
    assert ("momentum", "float16", "none at all") in check.missing(registry, {"momentum": ["float16"]}, "cpu")


def test_registry_without_the_device_is_one_line(board, capsys):
    assert check.main(["-device", "gpu"]) == 2
    assert "no kernel for it" in capsys.readouterr().err
