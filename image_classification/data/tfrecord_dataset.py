"""ImageNet as TFRecord files, read at random positions; the layout of TensorFlow's and NVIDIA's scripts."""

import os

import numpy as np

from ..runtime import UserError, get_logger
from .datasets import require_folder
from .decode import CorruptImage
from .records import Records, check_shards
from .tfrecord import BadRecord, parse_example, read_index, scan_records, unframe

IMAGE_FEATURE = "image/encoded"
LABEL_FEATURE = "image/class/label"
_WANTED = (IMAGE_FEATURE.encode(), LABEL_FEATURE.encode())
FOLDERS = {"train": "train", "val": "validation"}


class TFRecordDataset:
    """Examples with the features ``image/encoded`` and ``image/class/label`` at known places of record files.

    ``labels`` is None: they are in the records. ``first_label`` is the number of the first class in the files (1 in
    those of TensorFlow's script, where 0 is the background).
    """

    in_memory = False
    labels = None

    def __init__(self, paths, positions, num_classes, first_label=1):
        self._records = Records(paths, positions)
        self.first_label = first_label
        self.label_hint = f", DATA.TFRECORD_FIRST_LABEL is {first_label}"
        self.num_classes = num_classes
        self.class_names = [str(label) for label in range(num_classes)]

    def __len__(self):
        return len(self._records)

    def read(self, index):
        """Return (encoded bytes as a memoryview, label counted from 0).

        Raises:
            CorruptImage: a checksum is wrong or a feature is missing.
        """
        try:
            features = parse_example(unframe(self._records.read(index)), _WANTED)
            (image,), (label,) = features[IMAGE_FEATURE], features[LABEL_FEATURE]
            if not isinstance(image, memoryview) or not isinstance(label, int):
                raise ValueError("a feature of another type")
        except BadRecord as error:
            raise CorruptImage(str(error)) from error
        except (KeyError, ValueError) as error:
            raise CorruptImage(f"not exactly one {IMAGE_FEATURE} and one {LABEL_FEATURE}") from error
        return image, label - self.first_label

    def describe(self, index):
        return self._records.describe(index)


def read_tfrecords(root, split, num_classes, first_label=1):
    """Return the records of ``train/*`` or ``validation/*`` in ``root``, found by ``idx_files/train/*`` likewise.

    A record file without an index file is scanned, which reads 12 bytes of each record.

    Raises:
        UserError: no record file, two sets of them, or an index file that does not fit.
    """
    require_folder(root)
    folder = os.path.join(root, FOLDERS[split])
    require_folder(folder)
    found = sorted(name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(".idx"))
    names = [name for name in found if os.path.isfile(os.path.join(folder, name))]
    if not names:
        raise UserError(f"{folder}: has no TFRecord files")
    paths = [os.path.join(folder, name) for name in names]
    check_shards(paths)
    positions, scanned = [], 0
    for number, (name, path) in enumerate(zip(names, paths, strict=True)):
        index_path = _find_index(root, FOLDERS[split], name)
        scanned += index_path is None
        table = scan_records(path) if index_path is None else read_index(index_path, path)
        positions.append(np.column_stack([np.full(len(table), number), table]))
    if scanned:
        get_logger().info("%s: scanned %d record files that have no index file in idx_files/", folder, scanned)
    return TFRecordDataset(paths, np.concatenate(positions), num_classes, first_label)


def _find_index(root, folder, name):
    for candidate in (
        os.path.join(root, "idx_files", folder, name),
        os.path.join(root, "idx_files", folder, f"{name}.idx"),
        os.path.join(root, folder, f"{name}.idx"),
    ):
        if os.path.isfile(candidate):
            return candidate
    return None
