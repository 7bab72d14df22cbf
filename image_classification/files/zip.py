"""The list of a zip archive, read with the standard library once it is known to be of a bearable length."""

import mmap
import re
import struct
import zipfile
import zlib

from ..runtime import UserError

MOST_ENTRIES = 100_000  # Python's objects for them are ten times as large as the entries
# What Python's zipfile raises for archives that are not what it expects; NotImplementedError is a RuntimeError.
DAMAGED = (zipfile.BadZipFile, LookupError, ValueError, OSError, RuntimeError, EOFError, struct.error, zlib.error)


def list_entries(path, file):
    """Return the ZipInfo of every entry of an open archive.

    Raises:
        UserError: it is cut or damaged, has too many entries, or two of one name.
    """
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            count = sum(1 for _ in re.finditer(rb"PK\x01\x02", content))
        if count > MOST_ENTRIES:
            raise UserError(f"{path}: refused: an archive of more than {MOST_ENTRIES} entries")
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(f"{path}: is damaged or cut: {str(error)[:80]}") from None
    if len({entry.filename for entry in entries}) != len(entries):
        raise UserError(f"{path}: refused: two of its entries have the same name")
    return entries
