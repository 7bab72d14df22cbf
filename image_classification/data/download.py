"""Files from the network and folders from archives, each complete or absent, made by one process while others wait.

Locks are POSIX record locks, which also hold between hosts on NFS. A killed process leaves a ``.part`` file, which the
next one continues, or a ``.extracting`` folder, which the next one removes; neither is ever taken for the result.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from ..runtime import UserError, get_logger

_BLOCK = 1 << 20
_NETWORK_BLOCK = 1 << 16  # what a kill loses at most
ATTEMPTS = 5


@dataclasses.dataclass(frozen=True)
class Source:
    """A public file: ``digest`` is "md5:..." or "sha256:...", whole or its beginning; None where none is published."""

    url: str
    file_name: str
    digest: str | None


def download_once(source, folder, timeout_seconds=30.0):
    """Return the path of the verified file in ``folder``; the first process downloads it, the others wait.

    A part that an interrupted download left is continued where the server allows it.

    Raises:
        UserError: the network fails, or the content has another hash than the published one.
    """
    path = Path(folder) / source.file_name
    with _lock(path):
        if path.exists():
            return path
        part = path.with_name(path.name + ".part")
        _download(source.url, part, timeout_seconds)
        if source.digest is None:
            get_logger().warning("%s: its publisher gives no hash, the content is taken as it came", source.url)
        else:
            found = file_digest(part, source.digest.partition(":")[0])
            if not found.startswith(source.digest):
                part.unlink()
                raise UserError(f"{source.url}: has {found}, expected {source.digest}; the file was removed")
        _finish(part, path)
    return path


def file_digest(path, algorithm):
    """Return "algorithm:hexadecimal" of a file's content."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{algorithm}:{digest.hexdigest()}"


def extract_once(archive, folder):
    """Return ``folder`` with the content of a tar or zip archive; the first process extracts, the others wait.

    Raises:
        UserError: the archive is cut, or a member would land outside the folder or is no plain file.
    """
    folder = Path(folder)
    with _lock(folder):
        if folder.is_dir():
            return folder
        working = folder.with_name(folder.name + ".extracting")
        shutil.rmtree(working, ignore_errors=True)
        get_logger().info("extracting %s to %s", archive, folder)
        try:
            working.mkdir()
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, working)
            else:
                _extract_tar(archive, working)
            os.sync()  # the name must not outlive a power failure that the content did not
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise UserError(f"{archive}: cannot be extracted: {error}") from error
        _finish(working, folder)
    return folder


def _download(url, part, timeout_seconds):
    for attempt in range(1, ATTEMPTS + 1):
        done = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
                _receive(response, part, done)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and done:  # nothing is left: the whole file had arrived, its hash decides
                return
            reason = f"HTTP {error.code}"
            final = error.code < 500
        except (OSError, EOFError) as error:
            reason = str(getattr(error, "reason", error))
            final = False
        if final or attempt == ATTEMPTS:
            raise UserError(f"{url}: download failed: {reason}")
        get_logger().warning("%s: %s; attempt %d of %d follows", url, reason, attempt + 1, ATTEMPTS)
        time.sleep(min(2.0 ** (attempt - 1), 10.0))


def _receive(response, part, done):
    resumed = getattr(response, "status", None) == 206
    start = done if resumed else 0
    length = response.headers.get("Content-Length")
    get_logger().info("downloading %s%s", response.url, f" from byte {start}" if start else "")
    with open(part, "ab" if resumed else "wb", buffering=0) as file:
        while block := response.read(_NETWORK_BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if length is not None and file.tell() < start + int(length):
            raise EOFError(f"the connection ended after {file.tell()} of {start + int(length)} bytes")


def _extract_tar(archive, folder):
    with tarfile.open(archive) as tar:
        for member in tar:
            target = _target(archive, folder, member.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                target.parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file, _BLOCK)
                    if file.tell() != member.size:
                        raise EOFError(f"{member.name} is cut")
            else:
                raise UserError(f"{archive}: refused: {member.name} is a link or a device")
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes a cut header for the end
            raise EOFError("it has no end mark")


def _extract_zip(archive, folder):
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            target = _target(archive, folder, member.filename)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with zipped.open(member) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)


def _target(archive, folder, name):
    parts = Path(name.replace("\\", "/")).parts
    if name.startswith("/") or ".." in parts or ":" in (parts[0] if parts else ""):
        raise UserError(f"{archive}: refused: {name!r} would be written outside the folder")
    return folder.joinpath(*parts)


def _finish(working, path):
    """Give a result its name and make that durable."""
    working.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lock(path):
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(lock_path, "w")  # noqa: SIM115 (closed below; closing it frees the lock)
    except OSError as error:
        if path.exists():  # a data set on a read-only disk
            yield
            return
        raise UserError(f"{path.parent}: cannot be written to: {error.strerror}") from error
    with lock:
        try:
            _acquire(lock, path)
        except OSError as error:
            raise UserError(f"{lock_path}: the file system has no locks: {error.strerror}") from error
        yield


def _acquire(lock, path):
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # both mean that another process has it
        get_logger().info("waiting for another process to finish %s", path)
        fcntl.lockf(lock, fcntl.LOCK_EX)
