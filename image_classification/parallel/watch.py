"""The processes of a run watch each other: none waits for one that stalls, and everybody knows which one it was.

Each process tells rank 0 (`hub`) once a second where its main thread stands and what it waits for. When a process died,
does not answer, or has kept others waiting longer than the limit, the hub says so to all. Whoever waits ends then with
that sentence, even while its main thread is inside gloo or the GPU's driver. It is the same over gloo and NCCL, and it
starts before Paddle is imported.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from image_classification.runtime import UserError, ending, print_error

from .exit_codes import EXIT_PEER_LOST, PeerLost
from .hub import PULSE_SECONDS, STALE_SECONDS, START_SECONDS, Hub, does_not_answer, named, this_host

LIMIT_SECONDS = 300.0  # without PARALLEL.TIMEOUT
STOP_SECONDS = 10.0  # a process that was asked to stop waits no longer for one that does not answer
LINGER_SECONDS = 2.0  # for the main thread to say by itself what went wrong
DEGREES = "IMAGE_CLASSIFICATION_DEGREES"  # how the processes share the work, in words; all say the same
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
_PACKAGE = str(Path(__file__).resolve().parents[1])


@functools.cache
def this_process():
    """Return the watch of this process, one of several whose place `env` wrote into the PADDLE_* variables.

    The first call returns when all processes of the run have come.

    Raises:
        UserError: rank 0's port is taken, or belongs to another run, or one process is to share the work otherwise.
        PeerLost: a process did not come.
    """
    rank, world_size = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
    return Watch(rank, world_size, os.environ["PADDLE_MASTER"], os.environ.get(DEGREES, ""))


def leave(code, message):
    """Tell the other processes, if there are any, that this one ends, and why."""
    if this_process.cache_info().currsize:
        this_process().leave(code, message)


@contextlib.contextmanager
def signals_later():
    """Keep signals back: for threads that must not take the main thread's, and for code that one would break."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Watch:
    """The watch over this process and by it, from the main thread's side. `limit` may be changed."""

    def __init__(self, rank, world_size, master, degrees=""):
        self.rank = rank
        self.limit = LIMIT_SECONDS
        self.verdict = None
        self._stderr = sys.stderr  # the main thread may have put another in its place for a while
        self._waits = None  # (what, since) of the main thread
        self._patience = None  # seconds, when shorter than the limit
        self._signals = 0  # that asked to stop
        self._end = None  # (when, line, code) of the process, whatever its main thread does
        self._main = threading.main_thread().ident or 0
        self._hub = None
        if rank == 0:
            self._hub = Hub(master, world_size, self.limit)
            with signals_later():
                self._hub.start()
        self._lock = threading.Lock()
        self._line, self._peers = _join(master, {"rank": rank, "world_size": world_size, "host": this_host(),
                                                 "pid": os.getpid(), "degrees": degrees})  # fmt: skip
        self._gate = _connect(master, time.monotonic() + START_SECONDS)
        _send(self._gate, {"rank": rank, "world_size": world_size, "kind": "gate"})
        self._wake, wakes = socket.socketpair()
        wakes.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        with signals_later():
            threading.Thread(target=self._run, name="watch", daemon=True).start()
        atexit.register(self._say_goodbye, 0, "")

    def gate(self, ranks):
        """Return once the main threads of all these processes are here, whenever that is.

        Raises:
            PeerLost: one of them will not come.
        """
        try:
            self._gate.sendall("-".join(map(str, ranks)).encode() + b"\n")
            if self._gate.recv(1):
                return
        except OSError:
            pass
        self._lose("its connection to rank 0 broke")

    @contextlib.contextmanager
    def waiting(self, what):
        """Say that the main thread waits for others, and in what; an error in here is their end, whoever notices.

        Raises:
            PeerLost: with the sentence that says who is to blame.
        """
        if self.verdict is not None:
            self._lose("")
        before, self._waits = self._waits, (what, time.monotonic())
        try:
            yield
        except PeerLost:
            raise
        except (RuntimeError, OSError) as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            self._lose(f"{what} failed ({text})", error)
        finally:
            self._waits = before

    def leave(self, code, message):
        """Tell the others that this process ends, and why; it is over in a few seconds even if something hangs."""
        self._end = (time.monotonic() + 4 * LINGER_SECONDS, None, code)
        self._say_goodbye(code, message)

    def _say_goodbye(self, code, message):
        self._tell({"bye": message, "code": code})
        deadline = time.monotonic() + LINGER_SECONDS
        while self._hub and self._hub.members[0].left is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the hub ends with this process

    def _lose(self, otherwise, error=None):
        self._patience = STALE_SECONDS
        self._tell(self._status(time.monotonic()))
        deadline = time.monotonic() + LINGER_SECONDS
        while self.verdict is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._end = (time.monotonic() + 4 * LINGER_SECONDS, None, EXIT_PEER_LOST)
        raise PeerLost(self.verdict or f"rank {self.rank} lost the others: {otherwise}") from error

    def _run(self):
        heard, pulse, watched, how_rank_0_ended = time.monotonic(), 0.0, [self._line, self._wake], None
        while True:
            ready, _, _ = select.select(watched, [], [], 0.2 if self._end else PULSE_SECONDS)
            now = time.monotonic()
            if self._wake in ready:
                self._count(self._wake.recv(64))
            if self._line in ready:
                silence, heard = now - heard, now
                for word in self._line.words():
                    if "verdict" in word:
                        self._obey(**word)
                    if "ended" in word:
                        how_rank_0_ended = f"{word['ended']} before the others"
                if not self._line.is_open:
                    watched.remove(self._line)
                    if silence > STALE_SECONDS:  # and another one has ended it
                        self._obey(does_not_answer(named(0, self._peers[0]), silence), stalls=True)
                    self._obey(how_rank_0_ended or f"{named(0, self._peers[0])} died")
            if self._hub:
                self._hub.limit = self.limit
            silence = now - heard
            if silence > min(self.limit, self._patience or self.limit) and self._line.is_open:
                self._obey(does_not_answer(named(0, self._peers[0]), silence), stalls=True, silent=[0])
            if now > pulse:
                pulse = now + 0.9 * PULSE_SECONDS
                self._tell(self._status(now))
            if self._end and now > self._end[0]:
                _, line, code = self._end
                if line:
                    print_error(f"error: {line}", self._stderr)
                os._exit(code)

    def _count(self, numbers):
        """Note signals that ask to stop; the main thread may be where it hears none."""
        asked = [number for number in numbers if number in (signal.SIGTERM, signal.SIGINT)]
        self._signals += len(asked)
        if asked:
            self._patience = min(self._patience or STOP_SECONDS, STOP_SECONDS)
        for number in asked:
            handler = signal.getsignal(number)
            at_once = handler is signal.default_int_handler or not getattr(handler, "held", True)
            at_once |= number == signal.SIGINT and self._signals > 1
            if at_once and self._end is None:
                self._end = (time.monotonic() + 2 * LINGER_SECONDS, *ending(KeyboardInterrupt(number)))

    def _obey(self, verdict, stalls=False, silent=()):
        """Let the main thread say it, and make sure that the process ends."""
        if self.verdict is not None:
            return
        self.verdict = verdict
        with contextlib.suppress(OSError):
            self._gate.shutdown(socket.SHUT_RDWR)  # wakes the main thread where it waits at a gate
        # A process that works on has time until it needs the others again, or the limit if it never does.
        seconds = 1.5 * LINGER_SECONDS if stalls or self._waits else self.limit
        if self._end is None:
            self._end = (time.monotonic() + seconds, verdict, EXIT_PEER_LOST)
        for rank in silent:
            _end_process(self._peers[rank])

    def _status(self, now):
        waits = self._waits
        return {"waits_for": waits and waits[0], "waited": now - waits[1] if waits else 0.0,
                "stands_in": self._stands_in(), "patience": self._patience or self.limit}  # fmt: skip

    def _stands_in(self):
        """Return "file.py:line (function)" of the innermost code of this project that the main thread is in."""
        frame = innermost = sys._current_frames().get(self._main)
        while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        frame = frame or innermost
        if frame is None:
            return "its end"
        name = os.path.relpath(frame.f_code.co_filename, _PACKAGE)
        return f"{name}:{frame.f_lineno} ({frame.f_code.co_name})"

    def _tell(self, word):
        with contextlib.suppress(OSError), self._lock:
            _send(self._line, word)


class _Line:
    """A connection that carries one JSON object a line; `words` returns those that have arrived."""

    def __init__(self, connection):
        self.connection = connection
        self.is_open = True
        self._buffer = b""

    def fileno(self):
        return self.connection.fileno()

    def sendall(self, data):
        self.connection.sendall(data)

    def words(self):
        try:
            received = self.connection.recv(65536)
            *lines, self._buffer = (self._buffer + received).split(b"\n")
            words = [json.loads(line) for line in lines]
        except (OSError, ValueError):  # gone, or somebody else listens there
            received, words = b"", []
        self.is_open = bool(received)
        return words


def _send(connection, word):
    connection.sendall(json.dumps(word).encode() + b"\n")


def _join(master, hello):
    """Return the line to the hub and {rank: (host, process id)} once all processes came; set where Paddle's store is.

    The address that everybody knows is the hub's, from the first moment on; Paddle's own store listens beside it.
    """
    deadline = time.monotonic() + START_SECONDS
    line, missing, heard = _Line(_connect(master, deadline)), None, time.monotonic()
    _send(line, hello | {"kind": "watch"})
    while time.monotonic() < deadline + 2 * PULSE_SECONDS and line.is_open:
        ready, _, _ = select.select([line], [], [], PULSE_SECONDS)
        for word in line.words() if ready else ():
            heard = time.monotonic()
            if "refused" in word:
                raise UserError(word["refused"])
            if "verdict" in word:
                raise PeerLost(word["verdict"])
            if "welcome" in word:
                host, port = master.rpartition(":")[0], str(word["store"])
                os.environ |= {"PADDLE_MASTER": f"{host}:{port}", "MASTER_ADDR": host, "MASTER_PORT": port}
                return line, {int(rank): tuple(place) for rank, place in word["welcome"].items()}
            missing, place = word["missing"], word["hub"]
    if missing is None:
        raise PeerLost(f"rank 0 does not answer at {master}: does another program listen there?")
    silence = time.monotonic() - heard
    if silence > STALE_SECONDS:
        _end_process(place)
        raise PeerLost(does_not_answer(named(0, place), silence))
    if not line.is_open:
        raise PeerLost(f"rank 0 ended at {master} while the processes came together")
    raise PeerLost(f"rank {' and '.join(map(str, missing))} did not come to {master}: was it started?")


def _connect(master, deadline):
    """Return a connection to "host:port" once somebody listens there."""
    host, _, port = master.rpartition(":")
    reason = "nobody listens"
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection((host, int(port)), timeout=5)
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(0.05)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        return connection
    raise PeerLost(f"rank 0 did not open {master} within {START_SECONDS:g} s ({reason}): was it started, is the port "
                   "open?")  # fmt: skip


def _end_process(place):
    """End a process that does not answer, where this one can, and where no parent waits to do it."""
    host, pid = place
    if host == this_host() and "IMAGE_CLASSIFICATION_PARENT" not in os.environ:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
