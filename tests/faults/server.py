"""Whole trainings in forked children of one process that has Paddle imported: a run costs less than a second.

Reads one JSON object a line from standard input and answers each with one on standard output:

    {"argv": [...], "folder": "/run", "fault": ["TEAR", 17, "ENOSPC"]}   ->   {"code": -9, "calls": 17, "text": "..."}

The fault comes at the 17th system call that changes a file below the folder. `shim.c` must be LD_PRELOADed. With
"seconds" the run is killed after that time, wherever it is.
"""

import ctypes
import errno
import json
import mmap
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from image_classification.runtime import prepare_process

prepare_process()

from visualdl import LogWriter  # noqa: F401, what a run imports late is imported here, once

from image_classification import build, checkpoint, launch, run_folder  # noqa: F401
from image_classification.parallel import (  # noqa: F401
    connect,
    single,
    topology,
)
from image_classification.ViT.vit import build_model

MODES = ("NOTHING", "KILL_BEFORE", "KILL_AFTER", "TEAR", "FAIL_ONCE", "FAIL_FROM")


def run(request):
    """Return the exit code, the number of calls and what was printed of one run in a child."""
    memory = mmap.mmap(-1, 8)
    calls = ctypes.c_long.from_buffer(memory)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            os._exit(_train(request, calls, log.fileno() if request.get("log") else -1))
        code = _wait(child, request.get("seconds"))
        output.seek(0)
        log.seek(0)
        text, lines = output.read().decode(errors="replace"), log.read().decode(errors="replace")
    return {"code": code, "calls": calls.value, "text": text, "log": lines.splitlines()}


def _wait(child, seconds):
    """Return the exit code of a child that is killed after this time."""
    ended, deadline = (0, 0), time.monotonic() + (seconds or 0)
    while seconds and not ended[0] and time.monotonic() < deadline:
        time.sleep(0.005)
        ended = os.waitpid(child, os.WNOHANG)
    if seconds and not ended[0]:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended[1] if ended[0] else os.waitpid(child, 0)[1])


def _train(request, calls, log):
    mode, at, error = request.get("fault") or ("NOTHING", 0, "EIO")
    folder = os.fsencode(request["folder"])
    ctypes.CDLL(None).arm(folder, ctypes.byref(calls), MODES.index(mode), ctypes.c_long(at), getattr(errno, error), log)
    try:
        return launch.run_guarded(build_model, request["argv"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(Path(launch.__file__).parent / "ViT")
    for line in sys.stdin:
        replies.write(json.dumps(run(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
