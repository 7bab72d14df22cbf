"""What one run leaves behind: a folder with its configuration, log, metrics, VisualDL records, report, checkpoints.

A folder belongs to one run. Only ``-resume`` from a checkpoint in it continues there; while a process writes to it, a
POSIX record lock (which also holds between hosts on NFS) keeps every other out.
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path

from .config import invocation_yaml, to_yaml
from .runtime import UserError, atomic_write, get_logger

RESULTS = ("report.json", "*.pdparams")  # a run that died before it had any of them lost nothing; it may start over
LOCK = ".lock"


class RunFolder:
    """A folder that exists and can be written to; every process of a run uses the same one."""

    def __init__(self, path, lock=None):
        self.path = Path(path)
        self._lock = lock  # an open file; closing it, or the end of the process, frees the lock

    @classmethod
    def create(cls, config):
        """Make ``-output``, or a new ``train-YYYYMMDD-HHMMSS`` (``eval-...``) below SAVE, lock it, write config.yaml.

        ``config.yaml`` is the recipe, for ``-cfg`` of another run; ``invocation.yaml`` what belongs to this run alone.

        Raises:
            UserError: the folder cannot be made or written to, holds another run, or one is running in it.
        """
        try:
            path = cls._make(config)
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise UserError(f"-output: {error.filename or config.OUTPUT}: cannot be written to: "
                            f"{error.strerror or error}") from None  # fmt: skip
        lock = _take_lock(path)
        check_output(config)  # again: now nobody else can begin
        folder = cls(path, lock)
        if not config.MODEL.RESUME:
            (path / "metrics.jsonl").unlink(missing_ok=True)  # of a start that came to nothing
        folder.write_text("config.yaml", to_yaml(config))
        folder.write_text("invocation.yaml", invocation_yaml(config))
        return folder

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

    def write_text(self, name, text):
        with atomic_write(self.path / name) as file:
            file.write(text.encode("utf-8"))

    def write_report(self, report):
        """Write ``report.json``, the contract for scripts."""
        self.write_text("report.json", json.dumps(report, indent=1) + "\n")

    def append_metrics(self, record):
        """Add one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self):
        """Return the records of ``metrics.jsonl``; what somebody else or a killed process put there is left out."""
        path, records = self.path / "metrics.jsonl", []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return [record for record in records if isinstance(record, dict) and {"kind", "step"} <= record.keys()]


def check_output(config):
    """Refuse a ``-output`` in which another run has left results; writes nothing.

    Raises:
        UserError: naming the two ways out.
    """
    if not config.OUTPUT or config.DRY_RUN:
        return
    path = Path(config.OUTPUT)
    if not any(found for name in RESULTS for found in path.glob(name)):
        return
    if config.EVAL:
        raise UserError(f"-output: {path}: holds a run already, and an evaluation has a folder of its own: "
                        "name another one")  # fmt: skip
    resumed = config.MODEL.RESUME and Path(config.MODEL.RESUME)
    if resumed and path.resolve() in (resumed.resolve(), resumed.resolve().parent):
        return
    way = f"continue it with -resume={path / 'latest'}, or " if (path / "latest.pdparams").exists() else ""
    raise UserError(f"-output: {path}: holds a run already: {way}name another folder")


def _take_lock(path):
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
