"""The memory that oneDNN's primitives need while they run."""

import numpy as np

_ALIGNMENT = 64  # bytes, a line of the cache


class Scratch:
    """Memory that all primitives share, since one of them runs at a time.

    Where one needs more than there is, it gets new memory, of twice the size at least, and the older ones keep theirs.
    """

    def __init__(self):
        self._arrays, self._newest = [np.empty(0, np.uint8)], 0

    def address(self, size: int) -> int:
        """Return where so many bytes begin."""
        if size > self._newest:
            self._newest = max(size, 2 * self._newest)
            self._arrays.append(np.empty(self._newest + _ALIGNMENT, np.uint8))
        return -(-self._arrays[-1].ctypes.data // _ALIGNMENT) * _ALIGNMENT
