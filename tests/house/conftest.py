"""The device of the contract and its report, which a person with a GPU can send: `make test-gpu`."""

import os
import platform
from pathlib import Path

import paddle
import pytest

from image_classification import runtime

REPORT = Path(__file__).resolve().parents[2] / "output" / "contract"


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """The device under test, selected; the CPU again afterwards. CONTRACT_DEVICE names another than a GPU."""
    name = os.environ.get("CONTRACT_DEVICE", request.param) if request.param == "gpu" else "cpu"
    if not runtime.device_of(name).count():
        pytest.skip(f"Paddle sees no {name.upper()}; CONTRACT_DEVICE=cpu runs these tests on the CPU instead")
    paddle.set_device(name)
    yield name
    paddle.set_device("cpu")


@pytest.fixture(scope="session")
def _rows(request):
    rows = {}
    yield rows
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [("device", "mode", "dtype", *columns)]
    lines += [(*key, *(row.get(name, "-") for name in columns)) for key, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [" ".join(f"{name} {value}" for name, value in machine(lines[1][0]).items())]
    text += ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    path = REPORT.with_name(f"{REPORT.name}{worker and '-' + worker}.txt")
    with runtime.atomic_write(path) as file:
        file.write("\n".join([*text, ""]).encode())
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *text, f"report: {path}", sep="\n")


def machine(device):
    """Return what a reader of the report must know: {name: value}."""
    facts = {"Python": platform.python_version(), "Paddle": paddle.__version__, "on": platform.platform()}
    if paddle.is_compiled_with_cuda():
        facts |= {"CUDA": paddle.version.cuda(), "cuDNN": paddle.version.cudnn()}
        facts["GPU"] = paddle.device.cuda.get_device_name() if device == "gpu" else "-"
    return facts


@pytest.fixture
def report(_rows, request, device):
    """A function (mode, dtype, name, value) that adds a figure to the report; nothing for the CPU's half."""
    if request.node.get_closest_marker("gpu"):
        return lambda mode, dtype, name, value: _rows.setdefault((device, mode, dtype), {}).update({name: value})
    return lambda *figure: None
