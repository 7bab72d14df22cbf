"""One process makes a file or a folder, the others wait for it.

Locks are POSIX record locks, which also hold between hosts on NFS, and which a process that is killed gives up.
"""

import contextlib
import fcntl
import os

from ..runtime import UserError, fsync_folder, get_logger


@contextlib.contextmanager
def lock(path):
    """Hold the lock of a path while the context lasts, after whoever has it.

    Raises:
        UserError: the folder cannot be written to.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock_path, flags, 0o666)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written to: {error.strerror}") from None
    try:
        _acquire(descriptor, path)
        yield
    finally:
        os.close(descriptor)  # frees the lock


def _acquire(descriptor, path):
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # both mean that another process has it
            get_logger().info("waiting for another process to finish %s", path)
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise UserError(f"{path.parent}: the file system has no locks: {error.strerror}") from None


def finish(working, path):
    """Give a result its name and make that durable."""
    working.rename(path)
    fsync_folder(path.parent)
