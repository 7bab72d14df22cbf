"""Folders from archives, each complete or absent, made by one process while others wait.

A killed process leaves a ``.extracting`` folder, which the next one removes; it is never taken for the result.
"""

import contextlib
import os
import shutil
import zipfile
from pathlib import Path

from ..runtime import UserError, get_logger
from .download import verify
from .locks import finish, lock
from .plain import open_plain
from .tar import FLOOR, RATIO, members, open_tar
from .zip import DAMAGED, list_entries

MEMBERS, SMALLEST = 1000, 64  # of any archive; bytes that a further member takes in it: a photograph has thousands
_BLOCK = 1 << 20


def extract_once(archive, folder, source=None):
    """Return ``folder`` with the content of a zip, tar or tar.gz archive; the first process extracts, the others wait.

    Args:
        source: the Source whose published hash the archive must have.

    Raises:
        UserError: the archive is cut or unfolds to far more than its size, or a member would land outside the folder or
            is no plain file.
    """
    folder = Path(folder)
    if folder.is_dir():
        return folder
    with lock(folder):
        if folder.is_dir():
            return folder
        if source is not None:
            verify(Path(archive), source)
        working = folder.with_name(folder.name + ".extracting")
        shutil.rmtree(working, ignore_errors=True)
        get_logger().info("extracting %s to %s", archive, folder)
        try:
            working.mkdir()
            with open_plain(archive) as file:
                zipped = file.read(4) == b"PK\x03\x04"
            extract = _extract_zip if zipped else _extract_tar
            extract(archive, working)
            os.sync()  # the name must not outlive a power failure that the content did not
        except OSError as error:
            raise UserError(f"{archive}: cannot be extracted: {error.strerror or error}") from None
        finish(working, folder)
    return folder


def _extract_tar(archive, folder):
    most = MEMBERS + os.stat(archive).st_size // SMALLEST
    with open_tar(archive) as (file, limit):
        for number, member in enumerate(members(file, limit)):
            if number == most:
                raise UserError(f"{archive}: refused: it has more than {most} members")
            target = _target(archive, folder, member.name)
            if member.kind == "other":
                raise UserError(f"{archive}: refused: {member.name} is a link or a device")
            _extract(archive, None if member.kind == "folder" else file, target, member.size)


def _extract_zip(archive, folder):
    with open_plain(archive) as file:
        entries = list_entries(archive, file)
        limit = RATIO * os.fstat(file.fileno()).st_size + FLOOR
        if sum(entry.file_size for entry in entries) > limit:
            raise UserError(f"{archive}: refused: it unfolds to more than {limit} bytes")
        try:
            with zipfile.ZipFile(file) as zipped:
                for entry in entries:
                    target = _target(archive, folder, entry.filename)
                    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise UserError(f"{archive}: refused: {entry.filename} is packed in an unusual way")
                    with contextlib.nullcontext() if entry.is_dir() else zipped.open(entry) as source:
                        _extract(archive, source, target, entry.file_size)
        except UserError:
            raise
        except DAMAGED as error:
            raise UserError(f"{archive}: is cut or damaged: {error}") from None


def _extract(archive, source, target, size):
    """Make a folder, or a file of the next bytes of another one; zipfile checks its checksum with the last of them."""
    with _writing(archive, target):
        (target.parent if source else target).mkdir(parents=True, exist_ok=True)
        file = open(target, "xb") if source else contextlib.nullcontext()  # noqa: SIM115
    with file:
        while source and size:
            block = source.read(min(size, _BLOCK))
            if not block:
                raise EOFError(f"{target.name} is cut")
            with _writing(archive, target):
                file.write(block)
            size -= len(block)


@contextlib.contextmanager
def _writing(archive, target):
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{archive}: cannot be extracted: {target.name[:80]}: {reason}") from None


def _target(archive, folder, name):
    parts = Path(name.replace("\\", "/")).parts
    if name.startswith("/") or ".." in parts or ":" in (parts[0] if parts else ""):
        raise UserError(f"{archive}: refused: {name!r} would be written outside the folder")
    return folder.joinpath(*parts)
