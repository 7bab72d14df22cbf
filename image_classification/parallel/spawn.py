"""The processes of one host, started by `main_multi_gpu.py -ngpus=N` itself, watched, and ended together."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

from image_classification.runtime import UserError, anonymous_file, check_interrupts, print_error

from . import env
from .exit_codes import EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_TERMINATED, EXIT_USER_ERROR

PARENT = "IMAGE_CLASSIFICATION_PARENT"  # process id of the watcher, set for each worker
GRACE_SECONDS = 5.0  # after the first failure, for the others to notice and say why
SHORT_GRACE_SECONDS = 3.0  # where the first one to end has noticed it of another, as all have then
TAIL_LINES = 40
_PR_SET_PDEATHSIG = 1


def is_worker(environ):
    """Return whether this process was started by :func:`run_workers`."""
    return PARENT in environ


def run_workers(count):
    """Start this very command `count` times, one rank each, and return the exit code of the whole.

    Rank 0 writes to the terminal; of the others only the end of their output is shown, if they fail. Ctrl-C, SIGTERM
    and SIGUSR1 are passed on, from the first process on. When a process fails the others end, too, at the latest after
    a few seconds. Nothing stays in the temporary folder, however this process ends.

    Raises:
        UserError: a process cannot be started.
        KeyboardInterrupt: a signal came before the first process, while the caller held them.
    """
    watcher = _Watcher()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    previous = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # until there is somebody to pass them on to
        check_interrupts()
        for number in numbers:
            signal.signal(number, watcher.pass_on)
        try:
            watcher.start(count)
        except OSError as error:
            raise UserError(f"-ngpus={count}: a process cannot be started: {error.strerror}") from error
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        return watcher.watch()
    finally:
        watcher.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def die_with_parent():
    """End this process like on SIGTERM when the one that started it is killed."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ.get(PARENT, parent)):
        sys.exit("the process that started this one is gone")


def _in_worker():
    os.setpgrp()  # Ctrl-C reaches the watcher only, which passes it on once
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT, signal.SIGUSR1})  # until it is ready to answer them


class _Watcher:
    def __init__(self):
        self.processes = []
        self.outputs = []  # descriptors, of all but rank 0

    def start(self, count):
        port = env.free_port()
        for rank in range(count):
            self.outputs.append(anonymous_file() if rank else None)  # the worker keeps it
            self.processes.append(self._start(rank, count, port))

    def _start(self, rank, count, port):
        environ = dict(os.environ)
        env.export(env.Environment("spawn", rank, count, rank, count, f"127.0.0.1:{port}"), environ)
        environ[PARENT] = str(os.getpid())
        for cards in [name for name in environ if name.startswith("FLAGS_selected_")]:
            del environ[cards]
        output = self.outputs[rank]
        return subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]], env=environ, stdout=output, stderr=output,
            preexec_fn=_in_worker,
        )  # fmt: skip

    def pass_on(self, number, frame):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def watch(self):
        while all(code is None or code == 0 for code in self._codes()):
            if all(code == 0 for code in self._codes()):
                return 0
            time.sleep(0.1)
        has_noticed = EXIT_PEER_LOST in self._codes()
        deadline = time.monotonic() + (SHORT_GRACE_SECONDS if has_noticed else GRACE_SECONDS)
        while None in self._codes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self._explain()

    def _codes(self):
        return [process.poll() for process in self.processes]

    def _explain(self):
        """Say which process failed first and why; return the exit code that tells it best."""
        codes = self._codes()
        hung = [rank for rank, code in enumerate(codes) if code is None]
        culprits = [rank for rank, code in enumerate(codes) if code not in (None, 0, EXIT_PEER_LOST)] or hung
        if culprits == hung:  # else they work on, as ranks do until they need the others
            for rank in hung:
                self.processes[rank].send_signal(signal.SIGUSR1)  # prints where it stands
            time.sleep(0.2)
        if codes[0] == EXIT_PEER_LOST and culprits == hung:
            culprits = []  # rank 0 has said who
        elif codes[0] and all(codes[rank] == codes[0] for rank in culprits):
            culprits = [0]  # all say the same, and rank 0 has said it
        for rank in culprits:
            how = _how(codes[rank])
            if rank == 0:
                if codes[0] not in (EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED):  # it has said all in a line
                    print_error(f"error: rank 0 {how}")
            else:
                lines = self._output(rank).splitlines()
                said = "the end of its output:" if lines else "it wrote nothing"
                shown = [f"[rank {rank}] {line}" for line in lines[-TAIL_LINES:]]
                print_error("\n".join([f"error: rank {rank} {how}; {said}", *shown]))
        code = next((codes[rank] for rank in culprits if codes[rank]), EXIT_PEER_LOST)
        return 128 - code if code < 0 else code

    def _output(self, rank):
        descriptor = self.outputs[rank]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def kill(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its loader's workers
            process.wait()


def _how(code):
    if code is None:
        return "did not end by itself: it hangs"
    return f"ended with signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
