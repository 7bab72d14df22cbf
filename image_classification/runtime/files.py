"""Files that appear whole or not at all."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import UserError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
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
        fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # of a disk that takes nothing any more; what went wrong first is raised
                temporary.unlink()


def anonymous_file() -> int:
    """Return the descriptor of a file without a name; it vanishes with the last process that holds it. Linux has it in
    memory, whatever disk is full."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("anonymous")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@contextlib.contextmanager
def writing_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which an error of the system is one of the user's: the folder cannot be written to."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to: {error.strerror or error}") from error


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a folder whose files appear in ``path``, a new or an empty one, all together or not at all."""
    path = Path(path)
    made = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path, prefix=".unfinished-") as scratch:
            yield Path(scratch)
            for file in Path(scratch).iterdir():
                file.replace(path / file.name)
    finally:
        with contextlib.suppress(OSError):  # one that holds something stays, and those around it
            for each in made:
                each.rmdir()


def why_unwritable(folder: str | os.PathLike[str]) -> str:
    """Return why nothing can be written to a folder, which need not be there yet; "" where it can be."""
    if Path(folder).parts[:1] == ("~",):
        return f"{folder}: only a shell knows what ~ is, and not behind an =: write the whole path"
    there = next(each for each in (Path(folder), *Path(folder).absolute().parents) if os.path.lexists(each))
    named = f"{folder}:" if there in (Path(folder), Path(folder).absolute()) else f"{folder}: {there}"
    if not os.path.isdir(there):
        return f"{named} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{named} cannot be written to"


def refuse_existing(path: str | os.PathLike[str], name: str) -> None:
    """Refuse to write over a file, or into a folder that holds something; ``name`` is the argument's.

    Raises:
        UserError: there is one already.
    """
    path = Path(path)
    if path.is_dir() and not any(path.iterdir()):
        return
    if os.path.lexists(path):
        what = "is a folder that is not empty" if path.is_dir() else "exists"
        raise UserError(f"{name}: {path}: {what}; name another, or remove it first")


@contextlib.contextmanager
def temporary_home() -> Iterator[None]:
    """Give what others write below the user's home another place, gone afterwards, where the home takes nothing.

    VisualDL makes folders there when it is imported, Paddle then and when it rewrites a model as a program; neither can
    be told where, and a service or a container often has no home that can be written to.

    Raises:
        OSError: names the home; there is no temporary folder that can be written to, either.
    """
    kept, home = os.environ.get("HOME"), Path(os.path.expanduser("~"))
    if home.is_absolute() and all(_takes(home / name) for name in (".cache/paddle", ".visualdl")):
        yield
        return
    try:
        temporary = tempfile.TemporaryDirectory()
    except OSError as error:
        why = "cannot be written to, nor any temporary folder: TMPDIR may name one that can"
        raise OSError(error.errno, why, str(home)) from error
    with temporary as folder:
        os.environ["HOME"] = folder
        try:
            yield
        finally:
            if kept is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = kept


def _takes(folder: Path) -> bool:
    """Return whether something can be written into a folder, or where it would be made; full disks and NFS say it only
    where something is."""
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError:
        return False
    return True


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what killed processes left of :func:`atomic_write` in a folder that nobody else writes to."""
    for path in Path(folder).glob(".*"):
        if re.fullmatch(r"\..+\.[a-z0-9_]{8}", path.name):
            path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
