"""Threads, vector instructions and memory of the process."""

import contextlib
import os
import platform
import re
import subprocess
import sys
import warnings
from pathlib import Path

import paddle
import pytest

from image_classification import runtime
from image_classification.runtime.process import CHATTER

ROOT = Path(__file__).resolve().parents[2]


def test_set_threads_keeps_what_the_user_exported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    runtime.set_threads(3)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("7", "3")


def test_exported_omp_threads_hold_for_mkl_too(monkeypatch):
    """With one OpenMP thread and two of MKL, the two wait for each other in busy loops."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    runtime.set_threads()
    assert os.environ["MKL_NUM_THREADS"] == "1"


def test_threads_are_shared_among_the_processes_of_a_host(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "1000")
    runtime.set_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("enabled", [True, False])
def test_import_of_paddle_is_not_looked_through_for_garbage_and_that_of_the_user_is_found_again(enabled):
    program = f"""
import gc, sys
if not {enabled}: gc.disable()
from image_classification.runtime import prepare_process
prepare_process()
kept, known = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
class Node: pass
node = Node(); node.own = node; del node
prepare_process()
print(kept > 100000, known == 0, gc.get_freeze_count() <= kept, gc.isenabled(), gc.collect() > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "True", "True", str(enabled), "True"], done.stdout + done.stderr


CPUINFO = "processor\t: 0\nvendor_id\t: {}\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"
AVX512 = "fma avx2 avx512f avx512cd avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    "vendor, flags, expected",
    [
        ("AuthenticAMD", AVX512, "7"),
        ("AuthenticAMD", "fma avx2 avx512f", "5"),
        ("HygonGenuine", "fma avx2", "5"),
        ("AuthenticAMD", "avx", None),
        ("GenuineIntel", AVX512, None),
    ],
)
def test_mkl_uses_the_vector_instructions_of_other_vendors(vendor, flags, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "")  # so that the test's end removes what tune_mkl sets
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE")
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(vendor, flags))
    runtime.tune_mkl(path)
    assert os.environ.get("MKL_DEBUG_CPU_TYPE") == expected
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    runtime.tune_mkl(path)
    assert os.environ["MKL_DEBUG_CPU_TYPE"] == "4"


def test_tuned_allocator_keeps_freed_blocks_in_the_process():
    # A child process, because the setting cannot be taken back. Two rounds on one 64 MiB block: the second one finds
    # its pages in place, without the 16384 page faults (4 KiB each) of the first.
    program = (
        "import ctypes, resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from image_classification import runtime\n"
        "assert runtime.tune_allocator()\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "faults = []\n"
        "for _ in range(2):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    block = libc.malloc(ctypes.c_size_t(2**26))\n"
        "    ctypes.memset(block, 1, 2**26)\n"
        "    libc.free(ctypes.c_void_p(block))\n"
        "    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
        "print(*faults)\n"
    )
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc has these settings")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    root = str(Path(runtime.__file__).parents[2])
    output = subprocess.run([sys.executable, "-c", program, root], env=environment, capture_output=True, text=True)
    first, second = map(int, output.stdout.split())
    assert second < 100 < first, output.stderr


def moved(x):
    return x + paddle.ones([1]) if x.place is None else x


def test_chatter_that_is_left_out_is_what_paddle_says(monkeypatch):
    monkeypatch.setattr("paddle.tensor.creation._warned_in_tensor", False)  # Paddle says it once in a process
    half = paddle.ones([2]).astype("float16").detach()
    half.stop_gradient = False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        paddle.nn.BatchNorm2D(1, use_global_stats=False)(paddle.ones([2, 1, 2, 2]))
        paddle.to_tensor(paddle.ones([1]))
        optimizer = paddle.optimizer.Momentum(parameters=[half])
        half.grad = paddle.ones([2]).astype("float16")
        with contextlib.suppress(RuntimeError):  # it has no such kernel, but the warning comes first
            optimizer.step()
        paddle.jit.to_static(moved, full_graph=True)(paddle.ones([1]))
    found = [next(known for known in CHATTER if re.match(known, str(warning.message))) for warning in said]
    assert set(found) == set(CHATTER[1:])  # the first one is said once, by the import


def test_loggers_of_a_script_are_heard_after_the_import_of_paddle():
    """Paddle gives the root logger its handler while what it writes is held back."""
    script = """import logging, image_classification
image_classification.list_models("vit*")
logging.getLogger("mine").warning("heard")"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "heard" in found.stderr
