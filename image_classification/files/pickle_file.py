"""Our own ``.pdparams``: a pickle for `paddle.load`, and behind it a checksum, which `paddle.load` passes over."""

import os
import pickle
import re

import crc32c

from ..runtime import UserError
from .plain import open_plain, unreadable
from .unpickle import load_pickle

_TRAILER = re.compile(rb"paddle-zoo crc32c ([0-9a-f]{8})\n")
_TRAILER_SIZE = 27
_BLOCK = 1 << 20


class _Checksummed:
    def __init__(self, file):
        self.file = file
        self.crc = 0

    def write(self, data):
        self.crc = crc32c.crc32c(data, self.crc)
        return self.file.write(data)


def dump_pickle(tree, file):
    """Write plain values and arrays to a binary file."""
    checksummed = _Checksummed(file)
    pickle.dump(tree, checksummed, protocol=4)
    file.write(b"paddle-zoo crc32c %08x\n" % checksummed.crc)


def read_pickle(path):
    """Return the :class:`~.unpickle.Pickle` that a whole file is, with or without a checksum; see :func:`load_pickle`.

    Raises:
        UserError: it cannot be read, has another checksum than it says, or holds anything besides one pickle.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size and file.read(1) != pickle.PROTO:
                raise UserError(f"{path}: is no .pdparams file, or damaged")
            end = size - _TRAILER_SIZE
            file.seek(max(end, 0))
            trailer = _TRAILER.fullmatch(file.read())
            end = end if trailer else size
            if trailer and _checksum(file, end) != int(trailer[1], 16):
                raise UserError(f"{path}: is damaged: its content has another checksum than was written with it")
            file.seek(0)
            found = load_pickle(file, path)
            if file.tell() != end:
                raise UserError(f"{path}: is damaged or cut: {size - file.tell()} bytes follow where it should end")
            return found
    except OSError as error:
        raise unreadable(path, error) from None


def checksum_of(path):
    """Return the CRC32C of a file's bytes.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with open_plain(path) as file:
            return _checksum(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise unreadable(path, error) from None


def _checksum(file, size):
    file.seek(0)
    crc = 0
    while size:
        block = file.read(min(size, _BLOCK))
        crc = crc32c.crc32c(block, crc)
        size -= len(block) or size
    return crc
