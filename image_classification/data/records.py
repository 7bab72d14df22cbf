"""Images that are pieces of large files: read at (file, offset, length), each process with its own open files."""

import collections
import os
import re
from collections.abc import Sequence

import numpy as np

from ..files.plain import open_plain
from ..runtime import UserError, get_logger
from .datasets import Labelled, PackedStrings

MAX_OPEN_FILES = 64
SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(.*)")


def check_shards(paths: Sequence[str]) -> None:
    """Look at names that count themselves, as `train-00003-of-01024` does.

    Raises:
        UserError: two sets of shards lie in one folder, so that their images would count twice.
    """
    sets: dict[tuple[str, str], dict[int, int]] = {}  # {what is the same in a set's names: {its size: shards found}}
    for path in paths:
        if match := SHARD.fullmatch(path):
            before, _, size, after = match.groups()
            sizes = sets.setdefault((before, after), {})
            sizes[int(size)] = sizes.get(int(size), 0) + 1
    for (before, after), sizes in sets.items():
        if len(sizes) > 1:
            found = " and ".join(f"of {size}" for size in sorted(sizes))
            raise UserError(f"{before}-*{after}: shards {found} lie in one folder, their images would count twice")
        for size, count in sizes.items():
            if count < size:
                get_logger().info("%s-*%s: %d of %d shards are there", before, after, count, size)


class Records:
    """Pieces of large files at ``positions`` int64 [N, 3] of (file, offset, length); pickles without its open files."""

    def __init__(self, paths, positions):
        self._paths = PackedStrings(paths)
        self._positions = np.ascontiguousarray(positions, np.int64).reshape(-1, 3)
        self._open = collections.OrderedDict()

    def __getstate__(self):
        return vars(self) | {"_open": collections.OrderedDict()}

    def __len__(self):
        return len(self._positions)

    def read(self, index):
        """Return exactly the bytes of a piece.

        Raises:
            UserError: naming file and offset, when the file cannot be read or is too short.
        """
        file_index, offset, length = self._positions[index].tolist()
        try:
            content = os.pread(self._descriptor(file_index), length, offset)
        except OSError as error:
            raise UserError(f"{self._paths[file_index]}: cannot be read: {error.strerror}") from error
        if len(content) != length:
            raise UserError(f"{self._paths[file_index]}: ends inside the record at offset {offset}")
        return content

    def describe(self, index):
        file_index, offset, _ = self._positions[index].tolist()
        return f"{self._paths[file_index]} at offset {offset}"

    def _descriptor(self, file_index):
        if file_index in self._open:
            self._open.move_to_end(file_index)
            return self._open[file_index]
        if len(self._open) >= MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        with open_plain(self._paths[file_index]) as file:
            self._open[file_index] = os.dup(file.fileno())
        return self._open[file_index]

    def __del__(self):
        while self._open:
            os.close(self._open.popitem()[1])


class RecordDataset(Labelled):
    """Encoded images that are records, see :class:`Records`, with known labels."""

    in_memory = False

    def __init__(self, paths, positions, labels, class_names):
        super().__init__(labels, class_names)
        self._records = Records(paths, positions)

    def read(self, index):
        """Return (encoded bytes, label)."""
        return self._records.read(index), int(self.labels[index])

    def describe(self, index):
        return self._records.describe(index)
