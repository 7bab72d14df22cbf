"""Standard input, output and error of this process, which who started it may have closed or may take away."""

import contextlib
import io
import os
import sys
from typing import TextIO


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that was closed: the next file would get its number, and what a library
    prints."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))  # it lives as long as the process


def escape_what_cannot_be_printed() -> None:
    """Let standard output show what its encoding does not have as escapes: a file's name may be any bytes."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    unicode = sys.stdout.encoding.lower().startswith("utf")  # else the errors of LC_ALL=C let file names pass alone
    if sys.stdout.errors == "strict" or (sys.stdout.errors == "surrogateescape" and not unicode):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_error(text: str, stream: TextIO | None = None) -> None:
    """Print lines to standard error; where that takes nothing, a pipe without a reader or a full disk, nothing else
    fails by it."""
    with contextlib.suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


def write_line(text: str) -> None:
    """Write to standard output what its encoding has, the rest as escapes.

    Raises:
        OSError: it cannot be written; from now on it is /dev/null, so that nothing else fails by it.
    """
    from tqdm import tqdm

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        tqdm.write(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stdout)
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # a stream of somebody's own
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        raise
