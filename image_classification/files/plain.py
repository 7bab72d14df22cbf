"""Plain files: opened without waiting, read within a limit."""

import os
import stat

from ..runtime import UserError

TEXT_LIMIT = 1 << 20  # bytes of a file that a person wrote


def open_plain(path):
    """Return a binary file that is open for reading.

    Raises:
        UserError: there is no such file, or it is a folder, a FIFO or a device, which would block or never end.
    """
    try:
        # without O_NONBLOCK opening a FIFO waits for somebody who writes to it
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return open(descriptor, "rb")
        os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise unreadable(path, error) from None
    raise UserError(f"{path}: cannot be read: it is no plain file")


def read_plain(path, limit=None):
    """Return the bytes of a file of at most ``limit`` bytes.

    Raises:
        UserError: as :func:`open_plain`, or the file is larger.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if limit is not None and size > limit:
                raise UserError(f"{path}: has {size} bytes, at most {limit} are allowed")
            return file.read(size)
    except OSError as error:
        raise unreadable(path, error) from None


def read_text(path, limit=TEXT_LIMIT):
    """Return the text of a UTF-8 file of at most ``limit`` bytes, without the mark with which Windows begins one.

    Raises:
        UserError: as :func:`read_plain`, or it is no text.
    """
    try:
        return read_plain(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text in UTF-8: byte {error.start}") from None


def unreadable(path, error):
    """Return the UserError for an exception that reading a file raised."""
    return UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
