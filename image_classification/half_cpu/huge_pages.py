"""Tensors in memory pages of 2 MiB instead of 4 KiB, where Linux gives them to those who ask.

A processor keeps the addresses of a few thousand pages at hand, and a large activation has more pages of 4 KiB than
that. Stock Paddle and PyTorch do not ask. What is in memory stays, so nothing depends on the system's answer.
"""

import ctypes
import mmap

_SMALLEST = 16 << 20  # bytes of a region; the stacks of threads are smaller
_PAGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, for what is in use already; `mmap` has no name for it


class Adviser:
    """Asks for huge pages on the 8th, 64th, 512th ... call: a GB of them takes up to a second, which a short run would
    not win back, and memory grows in the first steps of a long one and hardly afterwards."""

    def __init__(self):
        self._calls, self._next = 0, 8

    def __call__(self):
        """Ask if it is time to."""
        self._calls += 1
        if self._calls >= self._next:
            self._next *= 8
            ask()


def ask():
    """Ask for huge pages for what is in memory now."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
    if madvise is None:
        return
    for start, end in _regions():
        for advice in (mmap.MADV_HUGEPAGE, _COLLAPSE):  # an older Linux, or one without free memory, may decline
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _regions():
    """Return [(start, end)] of this process's large regions of writable memory that are no files, in whole pages."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:  # a container without /proc
        return []
    found = []
    for line in lines:
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if end - start >= _SMALLEST:
            found.append((start, end))
    return found
