"""Images in tar files without extracting them: WebDataset shards.

A tar file is a chain of headers; the index of where each member lies is read once and kept beside the shard.
"""

import glob
import gzip
import io
import os

import crc32c
import numpy as np

from ..files.plain import open_plain, read_plain
from ..files.tar import members, open_tar
from ..runtime import UserError, atomic_write, get_logger
from .datasets import IMAGE_EXTENSIONS, require_folder
from .labels import count_classes, json_label, text_label
from .records import RecordDataset, check_shards

LABELS = ("cls", "json")  # endings, the first that is there counts
LONGEST_LABEL = 1 << 20  # bytes
NPY_HEADER = 128  # bytes before an array in NumPy's format


def read_tar_shards(root, split, num_classes):
    """Return the samples of ``<split>*.tar`` or ``<split>/*.tar`` in ``root`` (WebDataset's layout).

    Members with the same name up to the first dot are one sample, hidden ones none: an image, and a label as ``.cls``
    (text) or in ``.json`` ({"label": 3}). Without ``num_classes`` there are as many classes as the labels count.

    Raises:
        UserError: no shard, two sets of them, a cut one, or a sample without image or label, or with two.
    """
    require_folder(root)
    folder = glob.escape(root)
    patterns = (os.path.join(folder, f"{split}*.tar"), os.path.join(folder, split, "*.tar"))
    paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
    if not paths:
        raise UserError(f"DATA.DATA_PATH: {root} has neither {split}*.tar nor {split}/*.tar")
    check_shards(paths)
    positions, labels = [], []
    for number, path in enumerate(paths):
        offsets, lengths, shard_labels = _shard_index(path)
        positions.append(np.stack([np.full_like(offsets, number), offsets, lengths], axis=1))
        labels.append(shard_labels)
    labels = np.concatenate(labels)
    if not len(labels):
        raise UserError(f"DATA.DATA_PATH: {paths[0]}: no shard of {split} has a sample")
    names = [str(label) for label in range(count_classes(labels, root) if num_classes is None else num_classes)]
    return RecordDataset(paths, np.concatenate(positions), labels, names)


def _shard_index(path):
    """Return int64 arrays (offset, length, label) of a shard, from its index file when that is whole and of this shard.

    The index is an array [2 + samples, 3] in NumPy's format: (size, time of change in ns, samples) of the shard, the
    checksum of the rest, and a row for each sample.
    """
    index_path = f"{path}.index.npy"
    with open_plain(path) as file:
        stamp = os.fstat(file.fileno())
    table = _read_index(index_path, stamp)
    if table is None:
        table = np.array(_read_samples(path), np.int64).reshape(-1, 3)
        try:
            with atomic_write(index_path) as file:
                file.write(_index_content(stamp, table))
        except UserError as error:
            get_logger().info("%s; the shard is indexed anew each time", error)
    return table[:, 0], table[:, 1], table[:, 2]


def _read_index(index_path, stamp):
    """Return int64 [N, 3] of (offset, length, label), None where there is no whole index of the shard."""
    try:
        content = read_plain(index_path, stamp.st_size + 1024)  # a sample takes 24 bytes here, 2048 there
    except UserError:
        return None
    rows = content[NPY_HEADER:]
    if len(rows) < 48 or len(rows) % 24:
        return None
    samples = np.frombuffer(rows, np.int64).reshape(-1, 3)[2:]
    places = samples[:, :2]
    inside = (places >= 0).all() and (places <= stamp.st_size).all() and (places.sum(axis=1) <= stamp.st_size).all()
    return samples if inside and content == _index_content(stamp, samples) else None


def _index_content(stamp, samples):
    """Return the bytes of an index file."""
    first = [stamp.st_size, stamp.st_mtime_ns, len(samples)]
    checksum = crc32c.crc32c(np.array(first, np.int64).tobytes() + samples.tobytes())
    file = io.BytesIO()
    np.save(file, np.concatenate([np.array([first, [checksum, 0, 0]], np.int64), samples]))
    return file.getvalue()


def list_members(path):
    """Return [(name, offset of its bytes, length)] of the plain files in an uncompressed tar file.

    Raises:
        UserError: the file is cut or no tar file.
    """
    with open_tar(path) as (file, limit):
        if isinstance(file, gzip.GzipFile):
            raise UserError(f"{path}: is compressed; images are read from it at their places, so unpack it with gunzip")
        return [(found.name, found.offset, found.size) for found in members(file, limit) if found.kind == "file"]


def _read_samples(path):
    """Return [[offset, length, label]] of a shard, in its order; where a sample has both, ``.cls`` is the label."""
    samples = {}
    for name, offset, length in list_members(path):
        folder, base = os.path.split(name)
        if base.startswith("."):
            continue
        key, _, extension = base.partition(".")
        parts = samples.setdefault(os.path.join(folder, key), {})
        kind = "image" if f".{extension.lower()}" in IMAGE_EXTENSIONS else extension
        if kind in parts:
            raise UserError(f"{path}: sample {os.path.join(folder, key)} has a second {kind}, {name}")
        if kind in ("image", *LABELS):
            parts[kind] = (name, offset, length)
    rows = []
    for key, parts in samples.items():
        label = next((kind for kind in LABELS if kind in parts), None)
        if label is None or "image" not in parts:
            raise UserError(f"{path}: sample {key} has no {'label' if 'image' in parts else 'image'}")
        name, offset, length = parts[label]
        rows.append([*parts["image"][1:], _read_label(path, name, label, offset, length)])
    return rows


def _read_label(path, name, extension, offset, length):
    where = f"{path}: {name}"
    if length > LONGEST_LABEL:
        raise UserError(f"{where}: holds no label: it has {length} bytes")
    with open_plain(path) as file:
        file.seek(offset)
        text = file.read(length).decode("utf-8", "replace")
    return json_label(text, where) if extension == "json" else text_label(text, where)
