"""CIFAR-10 and CIFAR-100 from the official Python archives, extracted or not."""

import dataclasses
import io
import os
from pathlib import Path

import numpy as np

from ..files.download import Source, verify
from ..files.plain import read_plain
from ..files.tar import members, open_tar
from ..files.unpickle import load_pickle
from ..runtime import UserError
from .datasets import ArrayDataset, require_folder

UNFOLDED = 2  # bytes of files for each byte of the archive, whose photographs hardly shrink


@dataclasses.dataclass(frozen=True)
class Cifar:
    """Names in one of the archives."""

    source: Source
    folder: str
    files: dict
    labels: bytes
    meta_file: str
    class_names: bytes


CIFAR = {
    "cifar10": Cifar(
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
        ),
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "val": ("test_batch",)},
        b"labels",
        "batches.meta",
        b"label_names",
    ),
    "cifar100": Cifar(
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
        "cifar-100-python",
        {"train": ("train",), "val": ("test",)},
        b"fine_labels",
        "meta",
        b"fine_label_names",
    ),
}


def has_cifar(name, root):
    """Return whether ``root`` is or holds the official folder, or holds the archive."""
    kind = CIFAR[name]
    places = (kind.meta_file, kind.folder, kind.source.file_name)
    return any(os.path.exists(os.path.join(root, place)) for place in places)


def read_cifar(name, root, split):
    """Return the images of ``cifar10`` or ``cifar100``, uint8 [N, 32, 32, 3]; "val" is the official test set.

    ``root`` holds the official folder or the archive, or is that folder.

    Raises:
        UserError: neither is there, or a file is cut, foreign or unsafe.
    """
    kind = CIFAR[name]
    require_folder(root)
    if os.path.isfile(os.path.join(root, kind.meta_file)):
        contents = _read_folder(root, kind, split)
    elif os.path.isdir(os.path.join(root, kind.folder)):
        contents = _read_folder(os.path.join(root, kind.folder), kind, split)
    elif os.path.isfile(os.path.join(root, kind.source.file_name)):
        contents = _read_archive(os.path.join(root, kind.source.file_name), kind, split)
    else:
        raise UserError(
            f"DATA.DATA_PATH: {root} has neither {kind.folder}/ nor {kind.source.file_name};"
            " DATA.DOWNLOAD=True fetches it"
        )
    meta = _unpickle(contents, kind.meta_file)
    parts = [_unpickle(contents, file) for file in kind.files[split]]
    try:
        class_names = [text.decode() for text in meta[kind.class_names]]
        pixels = [part[b"data"] for part in parts]
        numbers = [part[kind.labels] for part in parts]
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(f"{root}: {split} files are not those of {name} ({error})") from None
    if not all(map(_is_pixels, pixels)) or not all(map(_are_labels, numbers)):
        raise UserError(f"{root}: {split} files are not those of {name}: other pixels or labels")
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([np.array(part, np.int64) for part in numbers])
    if len(images) != len(labels):
        raise UserError(f"{root}: {split} files are not those of {name}: {len(images)} images, {len(labels)} labels")
    return ArrayDataset(f"{name} {split}", images, labels, class_names)


def _is_pixels(value):
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 2 and value.shape[1] == 3072


def _are_labels(value):
    return isinstance(value, list) and all(type(label) is int and abs(label) < 1 << 31 for label in value)


def _read_folder(folder, kind, split):
    """Return {file name: (path for messages, bytes)}."""
    paths = {name: os.path.join(folder, name) for name in (kind.meta_file, *kind.files[split])}
    return {name: (path, read_plain(path)) for name, path in paths.items()}


def _read_archive(path, kind, split):
    # Read without extracting: there is then no half-extracted folder to mistake for the data set.
    verify(Path(path), kind.source)
    wanted = {f"{kind.folder}/{name}": name for name in (kind.meta_file, *kind.files[split])}
    contents, room = {}, UNFOLDED * os.stat(path).st_size + (1 << 20)
    with open_tar(path) as (file, limit):
        for member in members(file, limit):
            if member.name in wanted and member.kind == "file":
                room -= member.size
                if room < 0:
                    raise UserError(f"{path}: refused: its files are {UNFOLDED} times as large as the archive")
                contents[wanted[member.name]] = f"{path}:{member.name}", file.read(member.size)
    missing = sorted(set(wanted.values()) - set(contents))
    if missing:
        raise UserError(f"{path}: lacks {missing[0]}")
    return contents


def _unpickle(contents, name):
    path, content = contents.pop(name)
    return load_pickle(io.BytesIO(content), path, encoding="bytes").tree
