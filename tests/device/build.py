"""Compile the test device, a Paddle plug-in that computes on the CPU: python -m tests.device.build prints its folder.

    CUSTOM_DEVICE_ROOT=$(python -m tests.device.build) python ...     # Paddle then has the devices npu:0 and npu:1
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "plugin"
CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-DPADDLE_WITH_CUSTOM_DEVICE"]


def missing():
    """Return why the test device cannot be built here, None when it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the test device needs Linux on x86-64: it reads arguments by that calling convention"
    if shutil.which("g++") is None:
        return "the test device needs g++ (Debian: apt-get install g++)"
    return None


def build():
    """Return the folder for CUSTOM_DEVICE_ROOT; compiled when the sources, Paddle or the compiler changed.

    Raises:
        RuntimeError: what the compiler said.
    """
    sources = sorted(SOURCES.glob("*.cc"))
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    # Not imported: a process that has Paddle without the plug-in cannot load it any more.
    paddle = Path(importlib.util.find_spec("paddle").origin).parent
    key = hashlib.sha256(f"{compiler}{importlib.metadata.version('paddlepaddle')}{FLAGS}".encode())
    for path in sorted(SOURCES.iterdir()):
        key.update(path.read_bytes())
    folder = CACHE / f"test-device-{key.hexdigest()[:16]}"
    if folder.exists():
        return folder
    work = CACHE / f"test-device-{os.getpid()}"
    work.mkdir(parents=True)
    includes = ["-isystem", paddle / "include", "-isystem", paddle / "include" / "third_party"]
    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(lambda source: _compile(source, work, includes), sources))
    library = work / "libtestdev.so"
    libraries = ["-L", paddle / "libs", "-l:libphi_core.so", "-l:libcommon.so", "-lrt", "-pthread"]
    _run(["g++", "-shared", "-o", library, *objects, *libraries, "-Wl,-z,defs"])
    for path in objects:
        path.unlink()
    try:
        work.rename(folder)  # another process may have been faster
    except OSError:
        shutil.rmtree(work)
    return folder


def _compile(source, work, includes):
    result = work / f"{source.stem}.o"
    _run(["g++", *FLAGS, *includes, "-c", source, "-o", result])
    return result


def _run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


if __name__ == "__main__":
    if missing():
        sys.exit(f"error: {missing()}")
    print(build())
