"""What one run leaves behind: a folder with its configuration, log, metrics, VisualDL records, report, checkpoints.

A folder belongs to one run. Only ``-resume`` from a checkpoint in it continues there; while a process writes to it, a
POSIX record lock (which also holds between hosts on NFS) keeps every other out.
"""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import time
from pathlib import Path

from .config import invocation_yaml, to_yaml
from .data.sources import searched_folders
from .runtime import UserError, atomic_write, get_logger, remove_leftovers, why_unwritable, writing_to

RESULTS = ("report.json", "*.pdparams")  # a run that died before it had any of them lost nothing; it may start over
# What else a run writes, whatever was there before.
WRITTEN = (
    "config.yaml", "invocation.yaml", "metrics.jsonl", "log.txt", "log_[0-9]*.txt", "curves.png", "evaluation.json",
    "per_class.csv", "confusion.csv", "confusion.png", "best_weights.safetensors",
)  # fmt: skip
LOCK = ".lock"


class RunFolder:
    """A folder that exists and can be written to; every process of a run uses the same one."""

    def __init__(self, path, lock=None):
        self.path = Path(path)
        self._lock = lock  # an open file; closing it, or the end of the process, frees the lock; None: another's
        self._metrics = self.path / "metrics.jsonl"
        self._waiting = []  # lines of metrics.jsonl that could not be written yet
        self._complained = False

    @classmethod
    def create(cls, config):
        """Make ``-output``, or a new ``train-YYYYMMDD-HHMMSS`` (``eval-...``) below SAVE, lock it, write config.yaml.

        ``config.yaml`` is the recipe, for ``-cfg`` of another run; ``invocation.yaml`` what belongs to this run alone.

        Raises:
            UserError: the folder cannot be made or written to, holds another run, or one is running in it.
        """
        try:
            path = cls._make(config)
            lock = take_lock(path)
        except OSError as error:
            raise UserError(f"-output: {error.filename or config.OUTPUT}: cannot be written to: "
                            f"{error.strerror or error}") from None  # fmt: skip
        check_output(config)  # again: now nobody else can begin
        folder = cls(path, lock)
        with writing_to(path):
            remove_leftovers(path)
            if not _goes_on_in(path, config):
                (path / "metrics.jsonl").unlink(missing_ok=True)  # of a start that came to nothing
        folder.write_recipe(config)
        return folder

    def write_recipe(self, config):
        """Write ``config.yaml`` and ``invocation.yaml``."""
        self.write_text("config.yaml", to_yaml(config))
        self.write_text("invocation.yaml", invocation_yaml(config))

    def renew(self, config):
        """Make the folder anew where somebody removed it during the run: what is saved there is to be continued."""
        if not (self.path / "config.yaml").exists():  # the folder itself may be back, with the records
            get_logger().warning(f"{self.path}: was removed, and is made anew")
            self.write_recipe(config)

    @staticmethod
    def _make(config):
        if config.OUTPUT:
            path = Path(config.OUTPUT)
            path.mkdir(parents=True, exist_ok=True)
            return path
        name = f"{'eval' if config.EVAL else 'train'}-{time.strftime('%Y%m%d-%H%M%S')}"
        for each in (name, *(f"{name}-{number}" for number in range(2, 1000))):
            path = Path(config.SAVE) / each
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                continue
        raise FileExistsError(17, "holds a thousand runs of this second", config.SAVE)

    def close(self):
        """Let another run begin here."""
        if self._lock is not None:
            self._lock.close()

    def holds(self, path):
        """Return whether a file is of this folder."""
        return Path(path).resolve().parent == self.path.resolve()

    def write_text(self, name, text):
        with atomic_write(self.path / name) as file:
            file.write(text.encode("utf-8"))

    def write_report(self, report):
        """Write ``report.json``, the contract for scripts."""
        self.write_text("report.json", json.dumps(report, indent=1) + "\n")

    def append_metrics(self, record):
        """Add one line to ``metrics.jsonl``; on a full disk it waits for the next call, and a warning says so once."""
        self._waiting.append(json.dumps(record).encode() + b"\n")
        self._write_waiting()

    def sync_metrics(self):
        """Return the length of ``metrics.jsonl`` in bytes, once that much of it outlives a power cut; None: unknown."""
        self._write_waiting()
        try:
            with open(self._metrics, "ab") as file:
                os.fsync(file.fileno())
                return file.tell()
        except OSError:
            return None

    def cut_metrics(self, size):
        """Drop what ``metrics.jsonl`` has beyond `size` bytes: lines of steps that will be repeated, or a torn one."""
        with writing_to(self.path):
            if self._metrics.exists() and self._metrics.stat().st_size > size:
                os.truncate(self._metrics, size)

    def read_metrics(self):
        """Return the records of ``metrics.jsonl``; lines that somebody else put there are left out."""
        records = []
        if self._metrics.exists():
            for line in self._metrics.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    records.append(json.loads(line))
        return [record for record in records if isinstance(record, dict) and {"kind", "step"} <= record.keys()]

    def _write_waiting(self):
        if not self._waiting:
            return
        try:
            with open(self._metrics, "ab", buffering=0) as file:
                while self._waiting:
                    end, line = file.tell(), self._waiting[0]
                    try:
                        written = file.write(line)
                        if written < len(line):
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    except OSError:
                        file.truncate(end)  # a part of a line must not stay
                        raise
                    del self._waiting[0]
        except OSError as error:
            if not self._complained:
                self._complained = True
                get_logger().warning(
                    f"{self._metrics}: cannot be written: {error.strerror or error}; the run goes on, the lines "
                    "wait until it can"
                )


def check_output(config):
    """Refuse a folder that cannot be written to or lies among the images, or a ``-output`` that holds results of
    another run or, where no run has been, a file that this one would write over; writes nothing.

    Raises:
        UserError: naming the ways out.
    """
    path, flag = Path(config.OUTPUT or config.SAVE), "-output" if config.OUTPUT else "SAVE"
    why = why_unwritable(path)
    if why:
        raise UserError(f"{flag}: {why}")
    for place in searched_folders(config.DATA):  # where the pictures of the run would be a class of the next one
        if path.resolve().is_relative_to(os.path.realpath(place)):
            raise UserError(f"{flag}: {path}: lies among the images of {place}: name another folder")
    if not config.OUTPUT or config.DRY_RUN:
        return
    try:
        if not any(found for name in RESULTS for found in path.glob(name)):
            _refuse_to_write_over(path, config)
            return
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise UserError(f"-output: {path}: {error.strerror}") from None
    if config.EVAL:
        raise UserError(f"-output: {path}: holds a run already, and an evaluation has a folder of its own: "
                        "name another one")  # fmt: skip
    if _goes_on_in(path, config):
        return
    if not _has_run(path):
        raise UserError(f"-output: {path}: holds results of another project: name another folder")
    way = f"continue it with {resume_word(path)}, or " if (path / "latest.pdparams").exists() else ""
    raise UserError(f"-output: {path}: holds a run already: {way}name another folder")


def resume_word(path):
    """Return the option that goes on with a run's folder, as a shell takes it: a path may have blanks."""
    return shlex.quote(f"-resume={path / 'latest'}")


def _refuse_to_write_over(path, config):
    """Refuse a folder with files of somebody else; a start that left no result has left its lock, and its files may go.

    Raises:
        UserError: names the file.
    """
    if _goes_on_in(path, config) or (path / LOCK).exists():
        return
    for found in (found for name in WRITTEN for found in path.glob(name)):
        raise UserError(f"-output: {found}: exists, and this run would write over it: name another folder")


def _goes_on_in(path, config):
    """Return whether ``-resume`` names a folder that a run has left, or a checkpoint in it."""
    given = config.MODEL.RESUME
    if not given or not _has_run(path):
        return False
    is_folder = os.path.isdir(given) and not os.path.isfile(f"{given}.pdparams")  # as `checkpoint.find` takes it
    resumed = os.path.realpath(given)  # pathlib raises for a circle of links
    return os.path.realpath(path) == (resumed if is_folder else os.path.dirname(resumed))


def _has_run(path):
    """Return whether a run of ours has been in a folder; a copy may lack the hidden lock."""
    return (path / LOCK).exists() or (path / "invocation.yaml").exists()


def take_lock(path):
    """Return the open file that keeps every other process out of a folder until it is closed.

    Raises:
        UserError: a run is writing to it.
    """
    lock = open(path / LOCK, "w")  # noqa: SIM115 (the folder's object keeps it open)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # both mean that another process has it
        lock.close()
        raise UserError(f"-output: {path}: another run is writing to it: wait for its end, or name another "
                        "folder") from None  # fmt: skip
    except OSError as error:
        get_logger().warning(f"{path / LOCK}: {error.strerror}: nothing keeps a second run out of this folder")
    return lock
