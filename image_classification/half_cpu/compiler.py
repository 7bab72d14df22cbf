"""Builds the C++ kernels of the folder `cpp` with the system's compiler, once for this machine.

The library lies in the user's cache folder under a name that changes with the sources, the compiler and the processor.
It shares the OpenMP runtime of Paddle's wheel, as oneDNN does: a second one would compete for the same cores.
"""

import fcntl
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
from pathlib import Path
from typing import Any

import paddle

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "cpp"
LIMIT = 1200.0  # seconds for a compiler, or for another process that compiles; they take one minute on an idle machine
# A command in a shell that leads its group: where the standard input ends, which a SIGKILL does, too, the group does.
GUARDED = ("/bin/sh", "-c", """exec 3<&0; "$@" 3<&- & command=$!; { read end <&3; kill -s KILL -- -$$; } & guard=$!
wait $command; code=$?; exec 2>&-; kill $guard; wait $guard; exit $code""", "sh")  # fmt: skip
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-falign-loops=32")


def cache_folder():
    """Return the folder for built libraries, which need not exist.

    Raises:
        OSError: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "half_cpu"
    except RuntimeError as error:
        raise OSError(f"{error} XDG_CACHE_HOME may name a folder for them.") from error


def find():
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
    program = find()
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
                command = waiting.pop(0)
                process = subprocess.Popen(
                    [*GUARDED, *command], stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
                )
                running[process] = output, command
            for process in [process for process in running if process.poll() is not None]:
                output, command = running.pop(process)
                with output, process:
                    output.seek(0)
                    said = output.read()
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, command, stderr=said)
            if time.monotonic() > deadline:
                raise OSError(f"{commands[0][0]} was not done after {LIMIT:.0f} s")
            time.sleep(0.01)
    finally:  # whatever ends this: compilers and what they started
        for process, (output, _) in running.items():
            with output, process:
                os.killpg(process.pid, signal.SIGKILL)
    return said
