"""The memory that oneDNN's primitives need while they run."""

import ctypes
import mmap


class Scratch:
    """Memory that all primitives share, since one of them runs at a time.

    Where one needs more than there is, it gets new memory, of twice the size at least, and the older ones keep theirs.
    What was never written takes no memory. A process that is forked has its own.
    """

    def __init__(self):
        self._maps: list[mmap.mmap] = []

    def address(self, size: int) -> int:
        """Return where so many bytes begin."""
        newest = len(self._maps[-1]) if self._maps else 0
        if size > newest:
            self._maps.append(mmap.mmap(-1, max(size, 2 * newest), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return ctypes.addressof(ctypes.c_char.from_buffer(self._maps[-1]))
