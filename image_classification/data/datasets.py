"""What a data set is, and the two plain kinds: pixels in memory and image files on a disk.

A data set has ``num_classes``, ``class_names``, ``labels`` (int64 [N], or None when only the records know them),
``in_memory``, a length, ``read(index)`` and ``describe(index)``. It is pickled to the workers; NumPy arrays in it are
shared among them, so long lists of names are kept in arrays (:class:`PackedStrings`).
"""

import os

import numpy as np

from ..files.plain import read_plain
from ..runtime import UserError
from .classes import given_classes
from .decode import CorruptImage
from .splits import stratified_split

LARGEST_FILE = 1 << 29  # bytes of an image
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


class PackedStrings:
    """A list of strings in two arrays: 1.3 million paths take 60 MB once, not 200 MB in every worker."""

    def __init__(self, strings):
        encoded = [os.fsencode(string) for string in strings]
        self._ends = np.cumsum([len(item) for item in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self):
        return len(self._ends)

    def __getitem__(self, index):
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._bytes[start : self._ends[index]].tobytes())


class Labelled:
    """What data sets share that know the label of each image before it is read."""

    def __init__(self, labels, class_names):
        self.labels = np.asarray(labels, np.int64)
        self.class_names = list(class_names)
        self.num_classes = len(self.class_names)

    def __len__(self):
        return len(self.labels)


class ArrayDataset(Labelled):
    """Images that are in memory already, uint8 [N, height, width] or [N, height, width, channels]."""

    in_memory = True

    def __init__(self, name, images, labels, class_names):
        super().__init__(labels, class_names)
        self.name = name
        self.images = np.ascontiguousarray(images)

    def read(self, index):
        """Return (uint8 pixels, label)."""
        return self.images[index], int(self.labels[index])

    def describe(self, index):
        return f"{self.name} image {index}"


class FileDataset(Labelled):
    """Image files below ``root``, one label each."""

    in_memory = False

    def __init__(self, root, paths, labels, class_names):
        super().__init__(labels, class_names)
        self.root = os.fspath(root)
        self._paths = PackedStrings(paths)

    def read(self, index):
        """Return (encoded bytes, label).

        Raises:
            CorruptImage: the file cannot be read.
        """
        path = self.describe(index)
        try:
            return read_plain(path, LARGEST_FILE), int(self.labels[index])
        except UserError as error:
            raise CorruptImage(str(error).removeprefix(f"{path}: ")) from None

    def describe(self, index):
        return os.path.join(self.root, self._paths[index])

    def share(self, split):
        """Return the images of ``split`` "train" or "val" of a data set that comes without one."""
        chosen = stratified_split(self.labels, split)
        return FileDataset(self.root, [self._paths[index] for index in chosen], self.labels[chosen], self.class_names)


def require_folder(path, key="DATA.DATA_PATH"):
    """Raise UserError unless ``path`` is a folder."""
    if not os.path.isdir(path):
        below = "" if os.path.isabs(path) else f" of {os.getcwd()}"
        raise UserError(f"{key}: {path} is not a folder{below}")


def check_labels(dataset, model):
    """Raise UserError when a label that is known before reading is outside 0 .. NUM_CLASSES - 1 of a MODEL section."""
    if dataset.labels is None or len(dataset) == 0:
        return
    wrong = np.flatnonzero((dataset.labels < 0) | (dataset.labels >= model.NUM_CLASSES))
    if len(wrong):
        index = int(wrong[0])
        raise UserError(
            f"{dataset.describe(index)}: label {dataset.labels[index]} is outside 0..{model.NUM_CLASSES - 1}"
            f" ({given_classes(model)}); {len(wrong)} labels are"
        )
