"""Rank 0's side of the watch: it brings the processes together, hears from each, and names the one that stalls.

Every process has two connections to the hub, lines of JSON on one (`watch`), names of gates on the other. The hub is a
thread of rank 0 that knows no Paddle and waits for nobody.
"""

import contextlib
import json
import math
import os
import selectors
import socket
import threading
import time

from image_classification.runtime import UserError

START_SECONDS = 50.0  # for all processes to come
PULSE_SECONDS = 1.0  # between two words of a process
STALE_SECONDS = 4.0  # of silence, after which a process counts as one that does not answer, once somebody is to blame


class Member:
    """What the hub knows of one process; `heard` is when it last spoke."""

    def __init__(self, rank, connection, place, degrees):
        self.rank = rank
        self.connection = connection
        self.place = place  # (host, process id)
        self.degrees = degrees  # how the processes share the work, in words
        self.heard = time.monotonic()
        self.waits_for = None  # what its main thread waits for, None while it works
        self.waited = 0.0  # seconds
        self.stands_in = "its start"
        self.patience = math.inf  # seconds that it lets another one be silent
        self.left = None  # how it ended

    @property
    def name(self):
        return named(self.rank, self.place)


class Hub:
    """Listens at rank 0's address for `world_size` processes; `limit` is how long one may keep the others waiting.

    Raises:
        UserError: the address cannot be listened at.
    """

    def __init__(self, master, world_size, limit):
        self.master = master
        self.world_size = world_size
        self.limit = limit
        self.members = {}
        self.gates = {}  # ranks that belong to a gate -> {rank: connection} of those that came
        self.verdict = None
        self.started = False
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(master)
        self._store = _listen(":0", backlog=None)  # reserves the port of Paddle's store, which binds every address
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._deadline = time.monotonic() + START_SECONDS

    def start(self):
        threading.Thread(target=self._run, name="hub", daemon=True).start()

    def _run(self):
        pulse = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, pulse - time.monotonic())):
                key.data(key.fileobj)
            now = time.monotonic()
            if now < pulse:
                continue
            if now - pulse > PULSE_SECONDS:  # this very process was stopped: what the others said is still on its way
                for member in self.members.values():
                    member.heard = now
            pulse = now + PULSE_SECONDS
            self._say(self._pulse())
            self._judge(now)

    def _accept(self, listener):
        connection, _ = listener.accept()
        connection.settimeout(5)  # for sends; nothing is read before there is something
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = self._lines(connection)
        next(lines)
        self._selector.register(connection, selectors.EVENT_READ, lambda each: next(lines))

    def _lines(self, connection):
        """A generator that takes what arrives, once for each `next`, and gives whole lines to whom they concern."""
        handle, buffer, received = self._greet, b"", b" "
        while True:
            yield
            try:
                received = connection.recv(65536)
                *whole, buffer = (buffer + received).split(b"\n")
                for line in whole:
                    handle = handle(connection, line) or handle
            except (OSError, ValueError, TypeError, KeyError):  # gone, or not a process of this run
                received = b""
            if not received:
                self._selector.unregister(connection)
                connection.close()
                handle(connection, None)
                yield

    def _greet(self, connection, line):
        """Take the first line of a connection; return what handles the next ones."""
        if line is None:
            return None
        try:
            hello = json.loads(line)
            rank, kind = hello["rank"], hello["kind"]
            if hello["world_size"] != self.world_size:
                return self._refuse(connection, f"{self.master} is rank 0 of {self.world_size} processes, not of "
                                                f"{hello['world_size']}: another run, or another -world_size")
            if kind == "gate":
                return lambda each, name: self._come(rank, each, name)
            if rank in self.members:
                return self._refuse(connection, f"{self.members[rank].name} is part of the run at {self.master} "
                                                "already: another run needs another port")
            member = self.members[rank] = Member(rank, connection, (hello["host"], hello["pid"]), hello["degrees"])
            _send(connection, self._pulse())
        except (ValueError, TypeError, KeyError):
            return self._refuse(connection, "not a process of this run")
        if len(self.members) == self.world_size:
            self._welcome()
        return lambda each, word: self._hear(member, word)

    def _welcome(self):
        """Let all begin, unless one is to share the work otherwise: they would make other groups, and wait in vain."""
        first = self.members[0].degrees
        for rank, member in sorted(self.members.items()):
            if member.degrees != first:
                self._say({"refused": f"rank {rank} was started for another run: PARALLEL is {member.degrees} there "
                                      f"and {first} on rank 0"})  # fmt: skip
                return
        self.started = True
        places = {each.rank: each.place for each in self.members.values()}
        self._say({"welcome": places, "store": self._store.getsockname()[1]})

    def _refuse(self, connection, reason):
        _send(connection, {"refused": reason})
        return lambda each, line: None

    def _hear(self, member, line):
        member.heard = time.monotonic()
        if line is None:
            if member.left is None:
                self._leave(member, f"{member.name} died")
            return
        word = json.loads(line)
        if "bye" in word:
            text = f": {word['bye']}" if word["bye"] else ""
            self._leave(member, f"rank {member.rank} ended{text}", failed=word["code"] != 0)
            return
        member.waits_for, member.waited = word["waits_for"], word["waited"]
        member.stands_in, member.patience = word["stands_in"], word["patience"]

    def _leave(self, member, how, failed=True):
        if failed and self.started:
            self._condemn(how)
        elif member.rank == 0:
            self._say({"ended": how})  # the hub ends with it
        member.left = how

    def _come(self, rank, connection, name):
        """Open a gate for those that wait at it once all did that it names, and shut it again."""
        if name is None:
            return
        arrived = self.gates.setdefault(name, {})
        arrived[rank] = connection
        if len(arrived) == name.count(b"-") + 1:
            del self.gates[name]
            # Rank 0 last: what it does next may keep the interpreter from this thread until the others have come, too.
            for _, each in sorted(arrived.items(), reverse=True):
                with contextlib.suppress(OSError):
                    each.sendall(b"\n")

    def _pulse(self):
        return {"missing": self._missing(), "hub": (this_host(), os.getpid())}

    def _missing(self):
        return [rank for rank in range(self.world_size) if rank not in self.members]

    def _judge(self, now):
        if self.verdict is not None:
            return
        if not self.started:
            if now > self._deadline:
                missing = " and ".join(map(str, self._missing()))
                self._condemn(f"rank {missing} of {self.world_size} did not come to {self.master} within "
                              f"{START_SECONDS:g} s: was it started, with the same address and port?")
            return
        present = [member for _, member in sorted(self.members.items()) if member.left is None]
        silent_limit = min([self.limit, *(member.patience for member in present)])
        silent = [member for member in present if now - member.heard > min(STALE_SECONDS, silent_limit)]
        waiting = [member for member in present if member.waits_for and member not in silent]
        longest = max((member.waited for member in waiting), default=0.0)
        gone = [member for member in self.members.values() if member.left is not None]
        if any(now - member.heard > silent_limit for member in silent) or (longest > self.limit and silent):
            seconds = max(now - member.heard for member in silent)
            self._condemn(does_not_answer(_names(silent), seconds), silent=silent)
        elif gone and longest > STALE_SECONDS:
            self._condemn("; ".join(f"{member.left} before the others" for member in gone))
        elif longest > self.limit:
            working = [member for member in present if member not in waiting]
            what = max(waiting, key=lambda member: member.waited).waits_for
            if working:
                places = "; ".join(dict.fromkeys(member.stands_in for member in working))
                text = f"{_names(working)} stalls in {places}: for {longest:.0f} s the others wait for it in {what}"
            else:
                places = "; ".join(f"rank {member.rank} in {member.waits_for}" for member in waiting)
                text = f"all processes wait for each other, {longest:.0f} s so far: {places}"
            self._condemn(text, stalls=True)

    def _condemn(self, text, silent=(), stalls=False):
        """Tell all who is to blame: processes that are `silent`, that keep the others waiting, or that are gone."""
        if self.verdict is None:
            self.verdict = text
            self._say({"verdict": text, "stalls": stalls or bool(silent), "silent": [each.rank for each in silent]})

    def _say(self, word):
        # rank 0 last: it may end with this word, and the hub with it
        for member in sorted(self.members.values(), key=lambda member: -member.rank):
            if member.left is None:
                _send(member.connection, word)


def this_host():
    """Return a name that only processes share that can signal each other."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def named(rank, place):
    """Return a process as a verdict names it."""
    host, pid = place
    return f"rank {rank} (process {pid} on {host.split('/')[0]})"


def does_not_answer(name, seconds):
    """Return the verdict about a process that is silent."""
    return f"{name} does not answer for {seconds:.0f} s: it is stopped, or its host is gone"


def _names(members):
    return " and ".join(member.name for member in members)


def _send(connection, word):
    with contextlib.suppress(OSError):  # whoever is gone is noticed when it is read from
        connection.sendall(json.dumps(word).encode() + b"\n")


def _listen(address, backlog=1024):
    """Return a socket bound to "host:port"; without a backlog nobody can connect to it."""
    host, _, port = address.rpartition(":")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host if host in ("127.0.0.1", "localhost") else "", int(port)))
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise UserError(f"{address}: rank 0 cannot listen there ({error.strerror}): is another run using it? Choose "
                        "another port by -port, or by MASTER_PORT under a launcher") from None
    return listener
