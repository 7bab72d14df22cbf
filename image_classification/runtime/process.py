"""This process: its rank, its threads, its allocator, what must be set before Paddle is imported."""

import contextlib
import ctypes
import gc
import io
import logging
import os
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from .files import temporary_home
from .streams import print_error
from .versions import refuse_unsupported

# What Paddle warns every user of, whatever they do.
CHATTER = (
    ".*ccache.*",  # nothing is compiled by it here
    "When training, we now always track global mean and variance",  # BatchNorm, for any reason
    "Accumulating with FP16/BF16 in optimizer",  # modes without masters are there to show just that
    "To copy construct from a tensor",
    "Tensor do not have 'place' interface for pir graph mode",  # a model that becomes a program
)


def rank() -> int:
    """Return the index of this process among all processes of the run, 0 when alone."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def world_size() -> int:
    """Return the number of processes of the run, 1 when alone."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(num_threads: int | None = None) -> None:
    """Set the number of compute threads of this process; call before Paddle is imported.

    The default is every core this process may use, shared among the processes of one host: Paddle's own default is one
    thread. Values that the user exported stay; OMP_NUM_THREADS holds for the libraries below Paddle too.
    """
    local_processes = int(os.environ.get("PADDLE_LOCAL_SIZE", world_size()))
    threads = num_threads or os.environ.get("OMP_NUM_THREADS") or max(1, cores() // max(1, local_processes))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def tune_mkl(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> None:
    """Let MKL use the vector instructions of a CPU that Intel did not make; call before Paddle is imported.

    Paddle's wheel brings an MKL of 2019, which takes its slowest path on every other vendor's CPU: on an AMD Zen 4 a
    float32 matrix product takes 2.6 times as long. A value that the user exported stays.
    """
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8")
    except OSError:
        return
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.split() for name, _, value in lines}
    flags = fields.get("flags", [])
    if fields.get("vendor_id", ["GenuineIntel"]) == ["GenuineIntel"] or "avx2" not in flags or "fma" not in flags:
        return
    # MKL's own numbers of its code paths: 7 is AVX-512 (F, CD, BW, DQ, VL), 5 is AVX2.
    has_avx512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)
    os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "7" if has_avx512 else "5")


def tune_allocator() -> bool:
    """Keep freed memory in the process and return True where the C library is glibc.

    By default glibc gives each block of 32 MiB and more back to the system when it is freed, and takes page faults for
    the next one: GELU forward and backward on [8, 197, 3072] takes 1.6 to 2.4 times as long, an addition 8 times.
    Values that the user exported (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_MAX_) stay.
    """
    if any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of <malloc.h>
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_max, 0))


def prepare_process() -> None:
    """Set what must be set before Paddle is imported, and import it; every entry point calls this first."""
    refuse_unsupported(needs_paddle=True)
    set_threads()
    tune_mkl()
    tune_allocator()
    # MKL chooses its code path by the alignment of the buffers, so that two runs differ, unless it is told not to.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    os.environ.setdefault("GLOG_minloglevel", "2")
    for message in CHATTER:
        warnings.filterwarnings("ignore", message=message)
    if "paddle" not in sys.modules:
        _import_paddle()


def _import_paddle() -> None:
    """Import Paddle, but for what it says of more than one thread, which concerns builds with OpenBLAS only; the wheels
    have MKL."""
    with _own_end(), _without_collections(), temporary_home(), contextlib.redirect_stderr(io.StringIO()) as said:
        import paddle  # noqa: F401
    for line in said.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print_error(line)
    # Paddle gives the root logger its handler meanwhile: it would write on into a text that nobody reads any more.
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is said:
                handler.setStream(sys.stderr)


@contextlib.contextmanager
def _own_end() -> Iterator[None]:
    """Keep a SIGTERM back, then let it do what it did: Paddle's handler prints a C++ trace and cleans nothing up."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Look for no garbage while modules are imported, nor among their objects later: they stay, and are so many that
    this took a third of the seconds in which a process imported Paddle and ended."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
