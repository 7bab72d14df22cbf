"""Files from the network, each complete or absent, made by one process while others wait.

Beside a file ``name`` there is ``.name.source``: its URL, size and hash, and while it is downloaded the server's mark
of this version (ETag). A killed process leaves a ``name.part``, which the next one continues where that mark or a
published hash makes sure that both halves are of one file.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

from ..runtime import UserError, atomic_write, get_logger
from .locks import finish, lock
from .plain import open_plain, read_text, unreadable

ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0  # without a byte
LARGEST = 32 << 30  # bytes of a file; the largest published vision model has 12 GB
SPARE = 256 << 20  # bytes that stay free on the disk
_BLOCK = 1 << 20
_NETWORK_BLOCK = 1 << 16  # what a kill loses at most
_LATER = (408, 425, 429)  # besides 500 and above: statuses that may be others a moment later
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


@dataclasses.dataclass(frozen=True)
class Source:
    """A public file: ``digest`` is "md5:..." or "sha256:...", whole or its beginning; None where none is published."""

    url: str
    file_name: str
    digest: str | None


class _Again(Exception):
    """This attempt failed, the next one may not."""


def download_once(source, folder):
    """Return the path of the verified file in ``folder``; the first process downloads it, the others wait.

    A file that is there already is not fetched, but verified, too; one without a hash or a record is taken as it is.

    Raises:
        UserError: the network fails, or the content is not what was published or downloaded.
    """
    path = Path(folder) / source.file_name
    if not os.path.lexists(path):
        with lock(path):
            if not os.path.lexists(path):
                _download(source, path)
                return path
    verify(path, source)
    return path


def verify(path, source):
    """Raise UserError unless a file has the published hash, or where none is published, that of its download."""
    record = _read_record(path)
    if source.digest is None and record.get("url") not in (None, source.url):
        raise UserError(f"{path}: comes from {record['url']}, not from {source.url}; remove it to fetch that")
    expected = source.digest or record.get("digest")
    if expected is None:
        open_plain(path).close()
        return
    found = file_digest(path, expected.partition(":")[0])
    if not found.startswith(expected):
        raise UserError(f"{path}: has {found}, expected {expected}: is damaged or another file; remove it")


def file_digest(path, algorithm):
    """Return "algorithm:hexadecimal" of a file's content."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with open_plain(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise unreadable(path, error) from None
    return f"{algorithm}:{digest.hexdigest()}"


def _download(source, path):
    part = path.with_name(path.name + ".part")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _fetch(source, path, part)
            found = file_digest(part, (source.digest or "sha256:").partition(":")[0])
            break
        except _Again as error:
            if attempt == ATTEMPTS:
                raise UserError(f"{source.url}: download failed: {error}") from None
            get_logger().warning("%s: %s; attempt %d of %d follows", source.url, error, attempt + 1, ATTEMPTS)
            time.sleep(min(2.0 ** (attempt - 1), 10.0))
    if source.digest is None:
        get_logger().warning("%s: its publisher gives no hash, the content is taken as it came", source.url)
    elif not found.startswith(source.digest):
        _discard(path, part)
        raise UserError(f"{source.url}: has {found}, expected {source.digest}; the file was removed")
    _write_record(path, {"url": source.url, "size": part.stat().st_size, "digest": found})
    finish(part, path)


def _fetch(source, path, part):
    """Fill the part to its end, from where it stands."""
    record = _read_record(path)
    version = record.get("version") if record.get("url") == source.url else None
    done = part.stat().st_size if os.path.isfile(part) and (version or source.digest) else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    if done and version:
        headers["If-Range"] = version
    try:
        with _open(source.url, headers) as response:
            begin, total = _what_comes(response, done, record if version else {})
            if begin is None:
                _discard(path, part)
                raise _Again("the server's answer does not continue what is here")
            _write_record(path, {"url": source.url, "size": total, "version": _version(response)})
            get_logger().info("downloading %s%s", source.url, f" from byte {begin}" if begin else "")
            _receive(response, source.url, part, begin, total)
        if done and source.digest and not _fits(part, source.digest):
            _discard(path, part)  # two halves of two files
            raise _Again("what was here and what came do not fit")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and done:  # nothing is left to send: the part is whole, or of another file
            if source.digest and _fits(part, source.digest):
                return
            _discard(path, part)
            raise _Again("the server has nothing that continues what is here") from None
        if error.code >= 500 or error.code in _LATER:
            raise _Again(f"HTTP {error.code}") from None
        raise UserError(f"{source.url}: download failed: HTTP {error.code}") from None
    except (http.client.InvalidURL, ValueError) as error:  # ValueError: no URL at all
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source.url}: download failed: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Again(str(getattr(error, "reason", None) or error) or type(error).__name__) from None


class _ToTheWebOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request, file, code, message, headers, new_url):
        if not new_url.startswith(("https://", "http://")):
            raise UserError(f"{request.full_url}: download failed: it leads to {new_url[:100]}")
        return super().redirect_request(request, file, code, message, headers, new_url)


def _open(url, headers):
    if not url.startswith(("https://", "http://")):
        raise UserError(f"{url}: download failed: it is no address of the web")
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.build_opener(_ToTheWebOnly).open(request, timeout=TIMEOUT_SECONDS)


def _what_comes(response, done, record):
    """Return (offset, bytes of the whole file or None) of an answer; the offset is None where it fits nothing here."""
    if response.status == 206 and done:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        begin, last, total = map(int, found.groups()) if found else (None, None, None)
        same = record.get("size") in (None, total) and record.get("version") in (None, _version(response))
        if begin != done or last != total - 1 or not same:
            return None, None
        return begin, total
    if response.status != 200:
        raise _Again(f"HTTP {response.status}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _Again(f"it comes in the encoding {response.headers['Content-Encoding']}")
    return 0, response.length


def _receive(response, url, part, begin, total):
    limit = LARGEST if total is None else total
    folder = part.parent
    if limit > LARGEST:
        raise UserError(f"{url}: download failed: it has {limit} bytes, at most {LARGEST} are allowed")
    if shutil.disk_usage(folder).free < (0 if total is None else total - begin) + SPARE:
        raise UserError(f"{url}: download failed: {folder} has no room for {total or 'its'} bytes")
    position = begin
    with _open_part(part, begin) as file:
        while block := response.read(_NETWORK_BLOCK):
            position += len(block)
            if position > limit:
                raise UserError(f"{url}: download failed: more than {limit} bytes come")
            if total is None and shutil.disk_usage(folder).free < SPARE:
                raise UserError(f"{url}: download failed: {folder} is full")
            _write(file, block, part)
        os.fsync(file.fileno())
    if total is not None and position < total:
        raise _Again(f"the connection ended after {position} of {total} bytes")


def _open_part(part, begin):
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_APPEND if begin else os.O_TRUNC)
    try:
        return open(os.open(part, flags, 0o666), "wb", buffering=0)
    except OSError as error:
        raise UserError(f"{part}: cannot be written: {error.strerror}") from None


def _write(file, block, part):
    try:
        while block:
            block = block[file.write(block) :]
    except OSError as error:
        raise UserError(f"{part}: cannot be written: {error.strerror}") from None


def _fits(part, digest):
    return file_digest(part, digest.partition(":")[0]).startswith(digest)


def _discard(path, part):
    for file in (part, _record_path(path)):
        with contextlib.suppress(OSError):
            file.unlink()


# ---- what is known of a file


def _version(response):
    """Return what the server calls this version of the file, None where it says nothing that holds for each byte."""
    tag = response.headers.get("ETag", "")
    version = tag if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', tag) else response.headers.get("Last-Modified", "")
    return version if re.fullmatch(r"[\x20-\x7e]{1,202}", version) else None


def _record_path(path):
    return path.with_name(f".{path.name}.source")


def _read_record(path):
    """Return the record beside a file, {} where there is none that can be read."""
    try:
        record = json.loads(read_text(_record_path(path)))
    except (ValueError, RecursionError):  # UserError among them
        return {}
    kinds = {"url": str, "digest": str, "version": str, "size": int}
    if not isinstance(record, dict):
        return {}
    record = {key: record[key] for key, kind in kinds.items() if type(record.get(key)) is kind}
    if not re.fullmatch(r"(sha256|md5):[0-9a-f]{8,64}", record.get("digest", "md5:00000000")):
        del record["digest"]
    return record


def _write_record(path, record):
    with atomic_write(_record_path(path)) as file:
        file.write(json.dumps(record).encode())
