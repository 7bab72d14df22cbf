"""Images in tar files without extracting them: WebDataset shards, and ImageNet's official validation archive.

A tar file is a chain of headers; the index of where each member lies is read once and kept beside the shard.
"""

import glob
import json
import os
import tarfile

import numpy as np

from ..runtime import UserError, atomic_write, get_logger
from .datasets import IMAGE_EXTENSIONS, require_folder
from .records import RecordDataset

IMAGENET_VAL_TAR = "ILSVRC2012_img_val.tar"


def read_tar_shards(root, split, num_classes):
    """Return the samples of ``<split>*.tar`` or ``<split>/*.tar`` in ``root`` (WebDataset's layout).

    Members with the same name up to the first dot are one sample: an image, and a label as ``.cls`` (text) or in
    ``.json`` ({"label": 3}).

    Raises:
        UserError: no shard, a cut one, or a sample without image or label.
    """
    require_folder(root)
    patterns = (os.path.join(root, f"{split}*.tar"), os.path.join(root, split, "*.tar"))
    paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
    if not paths:
        raise UserError(f"DATA.DATA_PATH: {root} has neither {split}*.tar nor {split}/*.tar")
    positions, labels = [], []
    for number, path in enumerate(paths):
        offsets, lengths, shard_labels = _shard_index(path)
        positions.append(np.stack([np.full_like(offsets, number), offsets, lengths], axis=1))
        labels.append(shard_labels)
    names = [str(label) for label in range(num_classes)]
    return RecordDataset(paths, np.concatenate(positions), np.concatenate(labels), names)


def _shard_index(path):
    """Return int64 arrays (offset, length, label) of a shard, from its index file when that is as new as the shard."""
    index_path = f"{path}.index.npy"
    stamp = os.stat(path)
    try:
        saved = np.load(index_path, allow_pickle=False)
        if saved[0].tolist() == [stamp.st_size, stamp.st_mtime_ns, len(saved) - 1]:
            return saved[1:, 0], saved[1:, 1], saved[1:, 2]
    except (OSError, ValueError, IndexError, EOFError):
        pass
    samples = _read_samples(path)
    table = np.array([[stamp.st_size, stamp.st_mtime_ns, len(samples)], *samples], np.int64)
    try:
        with atomic_write(index_path) as file:
            np.save(file, table)
    except UserError as error:
        get_logger().info("%s; the shard is indexed anew each time", error)
    return table[1:, 0], table[1:, 1], table[1:, 2]


def list_members(path):
    """Return [(name, offset of its bytes, length)] of the plain files in an uncompressed tar file.

    Raises:
        UserError: the file is cut or no tar file.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            members = [(member.name, member.offset_data, member.size) for member in tar if member.isfile()]
            end = tar.offset
        with open(path, "rb") as file:
            file.seek(end)
            end_mark = file.read(tarfile.BLOCKSIZE)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path}: is cut or no tar file ({error})") from error
    if end_mark != bytes(tarfile.BLOCKSIZE):  # tarfile itself takes a cut header for the end
        raise UserError(f"{path}: is cut after {members[-1][0] if members else 'its beginning'}")
    return members


def _read_samples(path):
    """Return [[offset, length, label]] of a shard, in its order."""
    samples = {}
    for name, offset, length in list_members(path):
        folder, base = os.path.split(name)
        key, _, extension = base.partition(".")
        parts = samples.setdefault(os.path.join(folder, key), {})
        if f".{extension.lower()}" in IMAGE_EXTENSIONS:
            parts["image"] = (offset, length)
        elif extension in ("cls", "json"):
            parts["label"] = _read_label(path, name, extension, offset, length)
    for key, parts in samples.items():
        for part in ("image", "label"):
            if part not in parts:
                raise UserError(f"{path}: sample {key} has no {part}")
    return [[*parts["image"], parts["label"]] for parts in samples.values()]


def _read_label(path, name, extension, offset, length):
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(length)
    try:
        return int(json.loads(content)["label"]) if extension == "json" else int(content)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: {name}: holds no label ({error})") from error


def read_imagenet_val_tar(root):
    """Return ImageNet's validation images from ``ILSVRC2012_img_val.tar`` and a ground-truth file beside it.

    The ground truth is ``val.txt`` (Caffe: lines "file label", labels by sorted WordNet number), or
    ``ILSVRC2012_validation_ground_truth.txt`` with ``meta.mat`` from the official development kit. The kit numbers the
    classes 1-1000 in its own order; ``meta.mat`` says which WordNet number each has.

    Raises:
        UserError: a file is missing, cut, or does not fit the others.
    """
    path = os.path.join(root, IMAGENET_VAL_TAR)
    members = sorted((os.path.basename(name), offset, length) for name, offset, length in list_members(path))
    labels, class_names = _imagenet_val_labels(root, [name for name, _, _ in members])
    positions = [(0, offset, length) for _, offset, length in members]
    return RecordDataset([path], positions, labels, class_names)


def _imagenet_val_labels(root, names):
    listed = os.path.join(root, "val.txt")
    if os.path.isfile(listed):
        with open(listed, encoding="utf-8") as file:
            pairs = dict(line.split() for line in file if line.strip())
        missing = [name for name in names if name not in pairs]
        if missing:
            raise UserError(f"{listed}: has no label for {missing[0]}")
        return [int(pairs[name]) for name in names], [str(label) for label in range(1000)]
    truth = os.path.join(root, "ILSVRC2012_validation_ground_truth.txt")
    meta = os.path.join(root, "meta.mat")
    for needed in (truth, meta):
        if not os.path.isfile(needed):
            raise UserError(
                f"{needed}: missing; {IMAGENET_VAL_TAR} needs val.txt, or the ground truth and meta.mat of the"
                " development kit"
            )
    wordnet_numbers = _kit_classes(meta)
    with open(truth, encoding="utf-8") as file:
        kit_labels = [int(line) for line in file if line.strip()]
    if len(kit_labels) != len(names):
        raise UserError(f"{truth}: has {len(kit_labels)} labels, {IMAGENET_VAL_TAR} has {len(names)} images")
    class_names = sorted(wordnet_numbers.values())
    position = {name: label for label, name in enumerate(class_names)}
    try:
        return [position[wordnet_numbers[label]] for label in kit_labels], class_names
    except KeyError as error:
        raise UserError(f"{truth}: label {error} is not in {meta}") from error


def _kit_classes(meta):
    """Return {ILSVRC2012 number: WordNet number} of the classes without children."""
    from scipy.io import loadmat

    synsets = loadmat(meta, squeeze_me=True)["synsets"]
    return {int(entry["ILSVRC2012_ID"]): str(entry["WNID"]) for entry in synsets if int(entry["num_children"]) == 0}
