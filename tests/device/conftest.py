"""What the tests on the test device share; Paddle loads plug-ins at its import, so they have processes of their own."""

import ctypes
import gc
import os
from pathlib import Path

import paddle
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "npu"


class Board:
    """The figures of the test device (tests/device/plugin/runtime.h), to read, to count from now on, and to set."""

    def __init__(self, library):
        self._library = library
        self._library.testdev_get.restype = ctypes.c_int64
        self._library.testdev_set.argtypes = [ctypes.c_char_p, ctypes.c_int64]

    def __getitem__(self, name):
        value = self._library.testdev_get(name.encode())
        if value == -1 and name not in ("lose_after", "fail_collective_after"):
            raise KeyError(name)
        return value

    def __setitem__(self, name, value):
        if self._library.testdev_set(name.encode(), value):
            raise KeyError(name)

    def count(self, function, *names):
        """Return (what the function returns, by how much each figure grew); what was queued before is done first."""
        paddle.device.synchronize()
        before = [self[name] for name in names]
        result = function()
        return result, *[self[name] - start for name, start in zip(names, before, strict=True)]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.device)


@pytest.fixture(scope="session")
def _library():
    if DEVICE not in (paddle.device.get_all_custom_device_type() or []):
        pytest.skip("needs the test device, which `make test-device` builds and loads")
    (path,) = Path(os.environ["CUSTOM_DEVICE_ROOT"]).glob("*.so")
    return ctypes.CDLL(str(path))


@pytest.fixture
def board(_library):
    """The figures of the selected test device; afterwards the CPU is selected and the device is as it was."""
    board = Board(_library)
    settings = {name: board[name] for name in ("limit", "lazy")}
    paddle.set_device(DEVICE)
    gc.collect()
    paddle.device.empty_cache()  # what earlier tests gave back to Paddle's allocator goes back to the device
    yield board
    paddle.set_device(DEVICE)
    for name, value in {**settings, "lose_after": -1, "fail_collective_after": -1, "lost": 0}.items():
        board[name] = value
    paddle.device.synchronize()
    paddle.set_device("cpu")
