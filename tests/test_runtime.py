"""The process module: atomic files, random state, threads."""

import os
import platform
import random
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from image_classification import runtime


def test_atomic_write_failing_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        with runtime.atomic_write(path) as file:
            file.write(b"half of the new")
            raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.bin"]


def test_atomic_write_whole_replaces_the_file_with_usual_permissions(tmp_path):
    path = tmp_path / "folder" / "state.bin"
    with runtime.atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~runtime._umask()


def test_atomic_write_into_a_file_as_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(runtime.UserError, match="cannot be written"):
        with runtime.atomic_write(tmp_path / "file" / "state.bin"):
            pass


def draw():
    return random.random(), np.random.rand(2).tolist(), paddle.rand([3]).tolist(), paddle.randn([2]).tolist()


def test_rng_state_restored_repeats_every_generator():
    runtime.seed_everything(5)
    draw()
    state = runtime.rng_state()
    expected = draw()
    draw()
    runtime.set_rng_state(state)
    assert draw() == expected


def test_rng_state_is_plain_data():
    """A checkpoint must not hold objects of Paddle's: they would tie it to a version and to a pickle."""
    state = runtime.rng_state()
    assert isinstance(state["python"], str)
    assert all(isinstance(value, int | str) for generator in state["paddle"] for value in generator.values())


def test_seeds_differ_give_different_numbers():
    runtime.seed_everything(1)
    first = draw()
    runtime.seed_everything(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))


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
    root = str(Path(runtime.__file__).parents[1])
    output = subprocess.run([sys.executable, "-c", program, root], env=environment, capture_output=True, text=True)
    first, second = map(int, output.stdout.split())
    assert second < 100 < first, output.stderr


def test_asking_for_a_gpu_without_one_is_a_user_error():
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(runtime.UserError, match="no GPU"):
        runtime.select_device("gpu")
    with pytest.raises(runtime.UserError, match="DEVICE"):
        runtime.select_device("tpu")
    assert runtime.select_device("auto") == "cpu"


def test_terminal_log_goes_to_the_standard_output_of_the_moment(capsys, monkeypatch, tmp_path):
    """Not to the one of the moment it was set up, which may be closed by now."""
    with open(tmp_path / "closed", "w") as other:
        monkeypatch.setattr("sys.stdout", other)
        runtime.setup_logger()
        monkeypatch.undo()
    runtime.get_logger().info("still here")
    assert "still here" in capsys.readouterr().out
