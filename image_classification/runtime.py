"""The process: errors for users, rank, seed, device, threads, logger, files, meters. Imports nothing of the project.

Paddle is imported inside the functions that need it, because the number of threads must be set before.
"""

import ast
import contextlib
import ctypes
import io
import logging
import os
import platform
import random
import resource
import sys
import tempfile
import warnings
from pathlib import Path


class UserError(ValueError):
    """What a user typed or gave is wrong; the text is one line that names it and says what is allowed."""


def rank():
    """Return the index of this process among all processes of the run, 0 when alone."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def world_size():
    """Return the number of processes of the run, 1 when alone."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def set_threads(num_threads=None):
    """Set the number of compute threads of this process; call before Paddle is imported.

    The default is every core this process may use, shared among the processes of one host: Paddle's own default is one
    thread. Values that the user exported stay; OMP_NUM_THREADS holds for the libraries below Paddle too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_processes = int(os.environ.get("PADDLE_LOCAL_SIZE", os.environ.get("PADDLE_TRAINERS_NUM", "1")))
    threads = num_threads or os.environ.get("OMP_NUM_THREADS") or max(1, cores // max(1, local_processes))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def tune_mkl(cpuinfo="/proc/cpuinfo"):
    """Let MKL use the vector instructions of a CPU that Intel did not make; call before Paddle is imported.

    Paddle's wheel brings an MKL of 2019, which takes its slowest path on every other vendor's CPU: on an AMD Zen 4 a
    float32 matrix product takes 2.6 times as long. A value that the user exported stays.
    """
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8")
    except OSError:
        return
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    fields = {name.strip(): value.split() for name, value in fields.items()}
    flags = fields.get("flags", [])
    if fields.get("vendor_id", ["GenuineIntel"]) == ["GenuineIntel"] or "avx2" not in flags or "fma" not in flags:
        return
    # MKL's own numbers of its code paths: 7 is AVX-512 (F, CD, BW, DQ, VL), 5 is AVX2.
    has_avx512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)
    os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "7" if has_avx512 else "5")


def tune_allocator():
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


def prepare_process():
    """Set what must be set before Paddle is imported, and import it; every entry point calls this first."""
    set_threads()
    tune_mkl()
    tune_allocator()
    # MKL chooses its code path by the alignment of the buffers, so that two runs differ, unless it is told not to.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    os.environ.setdefault("GLOG_minloglevel", "2")
    # Paddle advises every user to install ccache; nothing is compiled here.
    warnings.filterwarnings("ignore", message=".*ccache.*")
    # It also warns of more than one thread, which concerns builds with OpenBLAS only; the wheels have MKL.
    with contextlib.redirect_stderr(io.StringIO()) as said:
        import paddle  # noqa: F401
    for line in said.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print(line, file=sys.stderr)


def select_device(name):
    """Select ``auto``, ``cpu``, ``gpu`` or ``gpu:N`` for Paddle and return ``"cpu"`` or ``"gpu"``."""
    import paddle

    has_gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if name == "auto":
        name = "gpu" if has_gpu else "cpu"
    if name != "cpu" and name.split(":")[0] != "gpu":
        raise UserError(f"DEVICE: {name!r} is not one of auto, cpu, gpu, gpu:N")
    if name.startswith("gpu") and not has_gpu:
        raise UserError(f"DEVICE: {name!r} was asked for, but this Paddle sees no GPU; use -opts DEVICE=cpu")
    if name == "gpu" and world_size() > 1:
        name = f"gpu:{os.environ.get('FLAGS_selected_gpus', '0').split(',')[0]}"
    paddle.set_device(name)
    return name.split(":")[0]


def seed_everything(seed):
    """Seed Python, NumPy and Paddle alike."""
    import numpy
    import paddle

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    paddle.seed(seed)


def set_deterministic():
    """Ask Paddle for results that two runs repeat bit for bit."""
    import paddle

    if paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1})


def rng_state():
    """Return the state of the random generators of Python, NumPy and Paddle as plain numbers and strings."""
    import numpy
    import paddle

    name, keys, position, has_gauss, cached = numpy.random.get_state()
    return {
        "python": repr(random.getstate()),
        "numpy": {"name": name, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "paddle": [_generator_numbers(generator) for generator in paddle.get_rng_state()],
    }


def set_rng_state(state):
    """Restore what :func:`rng_state` returned; Paddle's part only on a machine with as many devices.

    A state that was saved on a CPU says nothing about the generators of a GPU: those keep their seed then.
    """
    import numpy
    import paddle

    random.setstate(ast.literal_eval(state["python"]))
    saved = state["numpy"]
    numpy.random.set_state((saved["name"], saved["keys"], saved["position"], saved["has_gauss"], saved["cached"]))
    if len(paddle.get_rng_state()) == len(state["paddle"]):
        paddle.set_rng_state([_generator(numbers) for numbers in state["paddle"]])


def _generator_numbers(generator):
    # Paddle's GeneratorState shows its content through pickling only: (device, seed, offset, engine as ASCII codes).
    device, seed, offset, engine = generator.__reduce_ex__(4)[2]
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


def _generator(numbers):
    import paddle

    kind = type(paddle.get_rng_state()[0])
    generator = kind.__new__(kind)
    engine = list(numbers["engine"].encode("ascii"))
    generator.__setstate__((numbers["device"], numbers["seed"], numbers["offset"], engine))
    return generator


def peak_memory_bytes(device="cpu"):
    """Return the peak resident set of this process on a CPU, the peak allocated memory on a GPU, in bytes."""
    if device == "gpu":
        import paddle

        return paddle.device.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextlib.contextmanager
def atomic_write(path):
    """Give a binary file that appears under ``path`` whole or not at all, even when the power fails.

    Raises:
        UserError: the folder cannot be written to.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
        _fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _fsync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOGGER_NAME = "image_classification"


def get_logger():
    """Return the logger of the project; :func:`setup_logger` gives it its handlers."""
    return logging.getLogger(LOGGER_NAME)


def setup_logger(folder=None, process_rank=0):
    """Log to the terminal on rank 0 and, with a folder, to ``log.txt`` (rank 0) or ``log_<rank>.txt``."""
    logger = get_logger()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    formatter = logging.Formatter("%(asctime)s %(message)s", "%m%d %I:%M:%S %p")
    handlers = []
    if process_rank == 0:
        handlers.append(_TerminalHandler())
    if folder is not None:
        name = "log.txt" if process_rank == 0 else f"log_{process_rank}.txt"
        handlers.append(logging.FileHandler(Path(folder) / name, encoding="utf-8"))
    for handler in handlers or [logging.NullHandler()]:
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    return logger


class _TerminalHandler(logging.Handler):
    """Writes above a progress bar instead of through it, to whatever standard output is at that moment."""

    def emit(self, record):
        from tqdm import tqdm

        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def progress_bar(total, description, unit, is_main=True, initial=0):
    """Return a tqdm bar with ETA that shows itself on a terminal of the main process only, and not for short work."""
    from tqdm import tqdm

    shown = is_main and sys.stderr.isatty()
    return tqdm(
        total=total, initial=initial, desc=description, unit=unit, disable=not shown, leave=False, delay=0.5,
        dynamic_ncols=True, file=sys.stderr,
    )  # fmt: skip
