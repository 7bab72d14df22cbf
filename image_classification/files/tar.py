"""Tar archives, plain or gzipped: where the members are, without trust in what the headers say of sizes.

Python's tarfile goes round for ever where a size is negative, and reads an extended header whole, whatever its length.
The format: POSIX pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

import contextlib
import gzip
import os
import re
import zlib
from typing import NamedTuple

from ..runtime import UserError
from .plain import open_plain

BLOCK = 512
EXTENDED_LIMIT = 1 << 16  # bytes of a header that holds a long name
RATIO = 20  # photographs hardly shrink when packed; what unfolds to more is a bomb
FLOOR = 64 << 20  # bytes that the smallest archive may unfold to
_DAMAGED = (OSError, EOFError, zlib.error)
_FILES, _FOLDER, _WITHOUT_DATA, _EXTENDED = b"0\x007", b"5", b"123456", b"xgLK"  # types, each a byte
_PAX = re.compile(rb"(\d{1,7}) ([^=\n]{1,200})=")


class Member(NamedTuple):
    """A member of an archive; kind is "file", "folder" or "other", offset that of its first byte."""

    name: str
    kind: str
    offset: int
    size: int


class BadTar(Exception):
    """The archive is cut or malformed; the text says how."""


@contextlib.contextmanager
def open_tar(path):
    """Give (file, most bytes of it) of a tar archive, unzipped where it is a gzip file, and read it to its end.

    Members are to be read in their order. gzip's checksum stands at the end of the file: it is checked when the context
    ends well.

    Raises:
        UserError: the archive is cut, damaged or malformed, also while the context lasts.
    """
    try:
        with open_plain(path) as packed:
            size = os.fstat(packed.fileno()).st_size
            zipped = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            limit = RATIO * size + FLOOR if zipped else size
            with gzip.GzipFile(fileobj=packed) if zipped else contextlib.nullcontext(packed) as file:
                yield file, limit
                while zipped and file.read(1 << 20):
                    if file.tell() > limit:
                        raise BadTar(f"it unfolds to more than {limit} bytes")
    except (BadTar, *_DAMAGED) as error:
        raise UserError(f"{path}: is cut, damaged or no archive: {error or type(error).__name__}") from None


def members(file, limit):
    """Yield the :class:`Member` objects of an open archive; the file is at the member's first byte then.

    Raises:
        BadTar: a header is malformed, or the end is missing.
    """
    position, changes, last = 0, {}, "its beginning"
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if header == bytes(BLOCK):
            return
        if len(header) != BLOCK:
            raise BadTar(f"it is cut after {last!r}")
        name, kind, size = _parse(header, position)
        if kind not in _EXTENDED:
            size = 0 if kind in _WITHOUT_DATA else changes.get("size", size)
        begin = position + BLOCK
        position = begin + size + -size % BLOCK
        if begin + size > limit:
            raise BadTar(f"it is cut, or unfolds to more than {limit} bytes, after {last!r}")
        if kind in _EXTENDED:
            if size > EXTENDED_LIMIT:
                raise BadTar(f"a header of {size} bytes at offset {begin}")
            changes |= _extended(kind, file.read(size), begin)
            continue
        last = changes.get("name", name)
        if "\0" in last:
            raise BadTar(f"a name with a zero in it at offset {begin}")
        yield Member(last, "folder" if kind == _FOLDER else "file" if kind in _FILES else "other", begin, size)
        changes = {}


def _parse(header, position):
    """Return (name, type, size) of a header block."""
    expected = _octal(header[148:156], position)
    if expected != sum(header) - sum(header[148:156]) + 8 * 32:  # the field itself counts as blanks
        raise BadTar(f"wrong checksum of the header at offset {position}")
    kind = header[156:157]
    if kind == b"S":
        raise BadTar(f"a sparse file at offset {position}")
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0]
    if header[257:263] == b"ustar\0" and prefix:
        name = prefix + b"/" + name
    if kind == b"\0" and name.endswith(b"/"):  # before POSIX
        kind = _FOLDER
    return os.fsdecode(name), kind, _octal(header[124:136], position)


def _octal(field, position):
    if field[0] == 0x80:  # GNU: a large number in binary
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b"\0 ")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise BadTar(f"a number that is none in the header at offset {position}")
    return int(digits or b"0", 8)


def _extended(kind, content, offset):
    """Return what an extended header changes of the next member: {"name": ..., "size": ...}."""
    if kind == b"L":
        return {"name": os.fsdecode(content.split(b"\0")[0])}
    changes, position = {}, 0
    while kind == b"x" and position < len(content):
        found = _PAX.match(content, position)
        end = position + int(found[1]) if found else 0
        if not found or not found.end() < end <= len(content) or content[end - 1] != 0x0A:
            raise BadTar(f"a malformed header at offset {offset}")
        key, value = found[2], content[found.end() : end - 1]
        if key == b"path":
            changes["name"] = os.fsdecode(value)
        elif key == b"size":
            if not re.fullmatch(rb"\d{1,18}", value):
                raise BadTar(f"a size that is none in the header at offset {offset}")
            changes["size"] = int(value)
        elif key.startswith(b"GNU.sparse"):
            raise BadTar(f"a sparse file at offset {offset}")
        position = end
    return changes
