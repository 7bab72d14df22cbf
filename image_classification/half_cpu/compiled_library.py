"""Builds the C++ kernels of the folder `cpp` with the system's compiler, once for this machine, and binds them.

The library lies in the user's cache folder under a name that changes with the sources, the compiler and the processor.
Without a compiler, a writable cache folder or a processor with AVX2 and F16C there is none, and `backend_name` says so.
It shares the OpenMP runtime of Paddle's wheel, as oneDNN does: a second one would compete for the same cores.
"""

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from ctypes import c_char_p, c_double, c_float, c_int, c_long, c_uint, c_void_p
from pathlib import Path
from typing import Any

import paddle

from .scope import active

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "cpp"
LIMIT = 1200.0  # seconds for a compiler, or for another process that compiles; they take one minute on an idle machine
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-falign-loops=32")

_I, _L, _F, _D, _S, _P = c_int, c_long, c_float, c_double, c_char_p, c_void_p
_SIGNATURES = {
    "convert": (_I, _I, _L, _P, _P),
    "move": (_I, _I, _I, _P, _P, _P),
    "widen": (_I, _I, _I, _P, _P, _P),
    "windows": (_P, _I, _P, _P),
    "join_rows": (_L, _I, _P, _L, _P, _P, _I),
    "activation": (_S, _I, _L, _F, _F, _P, _P),
    "activation_backward": (_S, _I, _L, _F, _F, _P, _P, _P),
    "pair": (_S, _I, _P, _P, _P, _P, _P),
    "slope": (_S, _I, _I, _P, _P, _P, _P, _P, _P),
    "pick": (_L, _P, _P, _P, _L, _P, _L, _P, _P),
    "take_rows": (_L, _L, _L, _L, _L, _P, _P, _P),
    "add_rows": (_I, _L, _L, _L, _L, _P, _P, _P),
    "take_along": (_L, _L, _L, _L, _L, _P, _P, _P),
    "add_along": (_I, _L, _L, _L, _L, _P, _P, _P),
    "extreme": (_I, _I, _L, _L, _L, _P, _P),
    "extreme_backward": (_I, _L, _L, _L, _P, _P, _P, _P),
    "place": (_I, _I, _L, _L, _L, _P, _P),
    "running_sum": (_I, _I, _L, _L, _L, _P, _P),
    "length": (_I, _L, _L, _L, _P, _P, _P),
    "length_backward": (_I, _L, _L, _L, _F, _P, _P, _P, _P),
    "unfold": (_I, _P, _P, _P),
    "fold": (_I, _P, _P, _P),
    "cross_entropy": (_I, _L, _L, _L, _P, _P, _P, _P, _P, _P),
    "cross_entropy_backward": (_I, _L, _L, _L, _P, _P, _P, _P, _P),
    "expand": (_I, _I, _P, _P, _F, _P, _P),
    "dropout": (_I, _L, _P, c_uint, _F, _P, _P, _P),
    "dropout_backward": (_I, _L, _F, _P, _P, _P),
    "scaled_sum": (_I, _I, _I, _L, _L, _L, _I, _L, _P, _P, _P, _P, _P),
    "scaled_sum_backward": (_I, _I, _L, _L, _L, _I, _P, _P, _P, _P, _P, _P, _P),
    "lamb_direction": (_L, _D, _D, _F, _F, _I, _P, _P, _P, _P, _P, _P, _P, _P),
    "square_sums": (_L, _P, _P),
    "adam": (_I, _I, _I, _L, _F, _F, _F, _F, _F, _P, _P, _P, _P, _P, _P, _P, _P),
    "momentum": (_I, _I, _I, _L, _F, _F, _F, _I, _P, _P, _P, _P, _P),
    "sgd": (_I, _I, _I, _L, _F, _P, _P, _P, _P),
    "lamb_descend": (_L, _F, _P, _P, _P, _P),
    "reduce": (_I, _I, _P, _P, _P, _P, _F, _P),
    "order": (_I, _I, _L, _L, _L, _L, _P, _P),
    "softmax": (_I, _L, _L, _P, _P),
    "softmax_backward": (_I, _L, _L, _P, _P, _P),
    "log_softmax": (_I, _L, _L, _P, _P),
    "log_softmax_backward": (_I, _L, _L, _P, _P, _P),
    "softmax_columns": (_I, _L, _L, _L, _P, _P),
    "softmax_columns_backward": (_I, _L, _L, _L, _P, _P, _P),
    "layer_norm": (_I, _I, _L, _L, _F, _P, _P, _P, _P, _P, _P, _P),
    "layer_norm_backward": (_I, _I, _L, _L, _F, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "residual_norm": (_I, _L, _L, _L, _F, *[_P] * 10),
    "residual_norm_backward": (_I, _L, _L, _L, _F, *[_P] * 14),
    "batch_norm": (_I, _L, _L, _L, _F, _I, _S, _P, _P, _P, _P, _P, _P, _P),
    "batch_norm_backward": (_I, _L, _L, _L, _F, _I, _S, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "move_statistics": (_L, _F, _F, _P, _P, _P, _P),
    "group_norm": (_I, _P, _F, _P, _P, _P, _P, _P, _P),
    "group_norm_backward": (_I, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "long_product": (_I, _L, _L, _L, _L, _L, _L, _P, _P, _P),
    "attention": (_I, _P, _F, _P, _P, _P, _P, _P, _P),
    "attention_backward": (_I, _P, _F, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "matmul": (_I, _I, _P, _P, _P, _P, _P, _F, _P, _P, _I),
    "convolution": (_I, _I, _P, _S, _P, _P, _P, _P, _P, _P),
    "tiled_convolution": (_P, _S, _P, _P, _P, _P, _P, _P),
    "tiled_filters": (_P, _P, _P),
    "dot_convolution": (_P, _F, _F, _P, _P, _P, _P, _P, _P),
    "dot_filters": (_L, _L, _P, _P),
    "window_gradient": (_I, _P, _P, _P, _P),
    "winograd": (_I, _I, _P, _S, _P, _P, _P, _P, _P, _P, _L),
    "winograd_filters": (_I, _I, _L, _L, _P, _P),
    "resample": (_I, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "grid_sample": (_I, _P, _I, _I, _P, _P, _P),
    "grid_sample_backward": (_I, _P, _I, _I, _P, _P, _P, _P, _P),
    "unit": (_I, _P, _P, _P, _P, _P),
    "unit_backward": (_I, _P, _P, _P, _P, _P, _P, _P),
    "rotary": (_I, _P, _I, _I, _P, _P, _P, _P),
    "pooling": (_I, _P, _I, _I, _P, _P, _P),
    "pooling_backward": (_I, _P, _I, _I, _P, _P, _P),
}

# The places of a result and of an operand that may lie in the same memory.
_REPLACED = {"dot_convolution": (5, 8), "tiled_convolution": (4, 7)}


class CompiledError(RuntimeError):
    """A compiled kernel was asked for what it does not know."""


def _check(status, function, arguments):
    if status:
        what = "unknown number format or operation, or an index that is no place of the tensor"
        raise CompiledError(f"{function.__name__}: {what}")
    if active.recorder is not None:
        places = [index for index, kind in enumerate(function.argtypes) if kind is _P]
        active.recorder.called(function, arguments, places)


class Library:
    """The loaded kernels, one method for each function of `cpp`.

    Attributes:
        instruction_set: "avx512" or "avx2", what they were compiled to.
        multiplies_bfloat16: whether they hold products by AVX512-BF16.
        has_amx: whether they may multiply bfloat16 matrices by AMX.
        is_intel: whether the processor is one of Intel's.
        halves_vectors: whether the processor computes vectors of 512 bits in two halves, as AMD Zen 4 does.
    """

    def __init__(self, path):
        dll = ctypes.CDLL(str(path))
        for name, argument_types in _SIGNATURES.items():
            function = getattr(dll, name)
            function.argtypes, function.restype, function.errcheck = argument_types, c_int, _check
            function.replaced = _REPLACED.get(name, ())
            setattr(self, name, function)
        self.execute = dll.execute  # the one that returns a status of oneDNN's
        self.execute.argtypes, self.execute.restype = (_P, _P, _P, _P, _I, _P, _I, _P), c_int
        self.play = dll.play  # a list of calls, see `call_list`
        self.play.argtypes, self.play.restype = (_P, _L, _L, _P), c_long
        self.instruction_set = {16: "avx512", 8: "avx2"}[dll.lanes()]
        self.multiplies_bfloat16 = bool(dll.multiplies_bfloat16())
        self.has_amx = bool(dll.has_amx())
        self.is_intel = bool(dll.is_intel())
        self.halves_vectors = bool(dll.halves_vectors())


def numbers(*values):
    """Return the numbers as an array that the kernels read."""
    return (c_long * len(values))(*values)


def addresses(*pointers):
    """Return the pointers as an array that the kernels read, and a recorder of their calls."""
    return (_P * len(pointers))(*pointers)


@functools.cache
def load():
    """Return the :class:`Library`, built if it has to be, or None where it cannot be."""
    try:
        return Library(build(cache_folder()))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        lines = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
        reason = next((line for line in lines if "error" in line.lower()), lines[0])  # behind those that say where
        logger.warning("half_cpu runs without its compiled kernels: %s", reason)
        return None


def cache_folder():
    """Return the folder for built libraries, which need not exist.

    Raises:
        OSError: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "half_cpu"
    except RuntimeError as error:
        raise OSError(f"{error} XDG_CACHE_HOME may name a folder for them.") from error


def compiler():
    """Return the words of the C++ compiler, its path first: $CXX, which may have more, as `ccache g++`, or c++.

    Raises:
        OSError: there is none.
    """
    name = os.environ.get("CXX", "").strip() or "c++"
    try:
        first, *words = [name] if shutil.which(name) else shlex.split(name)  # a path may have blanks
    except ValueError as error:
        raise OSError(f"no C++ compiler: {name}: {error}") from None
    path = shutil.which(first)
    if path is None:
        raise OSError(f"no C++ compiler: {first} not found")
    return path, *words


def build(folder, flags=FLAGS):
    """Return the path of the library in `folder`; it is compiled, in about a minute, unless it is there and whole.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be compiled or written.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise OSError(f"they are written for Linux on x86-64, this is {platform.system()} on {platform.machine()}")
    program = compiler()
    runtime = Path(paddle.__file__).parent / "libs" / "libiomp5.so"
    path = folder / f"{_fingerprint(program, runtime, flags)}.so"
    if _is_whole(path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        way = "XDG_CACHE_HOME may name another folder"
        raise OSError(f"{folder}: cannot be written to: {error.strerror}; {way}") from error
    with lock:
        _wait_for(lock)  # of many processes that start at once, one compiles
        if not _is_whole(path):
            for left in folder.glob("tmp*"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            logger.info("half_cpu compiles its kernels for this machine, once, in a minute: they will be in %s", folder)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = _compile(program, runtime, flags, Path(scratch))
                content = made.read_bytes() if made.exists() else b""
                if content[:4] != b"\x7fELF":
                    raise OSError(f"{' '.join(program)}: ended without an error, and without a library")
                if _fingerprint(program, runtime, flags) != path.stem:
                    raise OSError(f"{SOURCES}: was changed while it was compiled")
                made.write_bytes(content + hashlib.sha256(content).digest())
                made.rename(path)
    return path


def _wait_for(lock):
    """Return once this process has the lock.

    Raises:
        OSError: another one has kept it for longer than a compiler may take.
    """
    for tries in range(int(LIMIT * 10)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if tries == 3:
                logger.info("half_cpu waits for its kernels, which another process compiles: %s", lock.name)
        time.sleep(0.1)
    raise OSError(f"another process has had {lock.name} for {LIMIT:.0f} s")


def _is_whole(path):
    """Return whether a library ends with the digest of what stands before. A crash of the machine may leave a part of
    it, and to load that ends the process."""
    content = path.read_bytes() if path.exists() else b""
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def _fingerprint(program, runtime, flags):
    version = _run([*program, "--version"])
    with open("/proc/cpuinfo") as file:
        processor = next((line for line in file if line.startswith("flags")), "")
    digest = hashlib.sha256("\0".join((*program, version, processor, str(runtime), *flags)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _compile(program, runtime, flags, scratch):
    """Return the path of the library, compiled into the folder `scratch`."""
    objects, commands = [], []
    for source in sorted(SOURCES.glob("*.cpp")):
        objects.append(scratch / f"{source.stem}.o")
        commands.append([*program, *flags, "-w", "-pipe", "-c", str(source), "-o", str(objects[-1])])
    _run(*commands)
    path = scratch / "kernels.so"
    # Without -fopenmp: it would link the compiler's own OpenMP runtime.
    _run([*program, "-shared", *map(str, objects), str(runtime), f"-Wl,-rpath,{runtime.parent}", "-o", str(path)])
    return path


def _run(*commands):
    """Return what the last of some commands says. As many run at once as there are cores, or memory might not do; none
    is left running.

    Raises:
        subprocess.SubprocessError, OSError: one failed, or took too long.
    """
    deadline, cores, said = time.monotonic() + LIMIT, len(os.sched_getaffinity(0)), ""
    waiting, running = [*commands], dict[subprocess.Popen, Any]()
    try:
        while waiting or running:
            while waiting and len(running) < cores:
                output = os.fdopen(os.memfd_create("said"), "w+", errors="replace")  # a full disk must not swallow why
                process = subprocess.Popen(waiting.pop(0), stdout=output, stderr=output, start_new_session=True)
                running[process] = output
            for process in [process for process in running if process.poll() is not None]:
                with running.pop(process) as output:
                    output.seek(0)
                    said = output.read()
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, process.args, stderr=said)
            if time.monotonic() > deadline:
                raise OSError(f"{commands[0][0]} was not done after {LIMIT:.0f} s")
            time.sleep(0.01)
    finally:  # whatever ends this: compilers and what they started
        for process, output in running.items():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.close()
    return said
