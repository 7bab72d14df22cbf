"""A plug-in of pytest: oneDNN says that it has AMX, too, and each test leaves the tiles as it found them."""

import ctypes

import pytest

from image_classification.half_cpu import compiled_library, compiler, onednn_library

# What oneDNN would compute by AMX it computes otherwise here.
_isa = onednn_library.Library.isa
onednn_library.Library.isa = lambda self: _isa(self) | onednn_library.AMX_BF16

assert compiled_library.load() is not None and compiled_library.load().has_amx
registers = ctypes.CDLL(str(compiler.build(compiler.cache_folder())))  # the library that is loaded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run a test in a thread whose tiles somebody else has configured, and see that no other thread keeps any."""
    registers.amx_set_others()
    result = yield
    assert registers.amx_has_others(), "a kernel left this thread another configuration of tiles than it found"
    assert registers.amx_configured() == 1, "a kernel left a configuration of tiles in a thread that had none"
    return result
