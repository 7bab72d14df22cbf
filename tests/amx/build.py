"""What the kernels with AMX in software are built with, and where to."""

import platform
import shutil
from pathlib import Path

COMPILER = Path(__file__).resolve().with_name("cxx")
CACHE = COMPILER.parents[2] / ".cache" / "amx"


def missing():
    """Return why the kernels cannot be built or used here, None when they can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or shutil.which("c++") is None:
        return "they need Linux on x86-64 and a C++ compiler (Debian: apt-get install g++)"
    if "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        return "they need AVX512-BF16, as every processor with AMX has"
    return None
