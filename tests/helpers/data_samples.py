"""Small images, folders and archives in the official layouts, made on the spot for the tests of the data package."""

import dataclasses
import hashlib
import io
import pickle
import tarfile

import cv2
import numpy as np
from PIL import Image

from image_classification.config import build_config
from image_classification.data import sources
from image_classification.data.cifar import CIFAR
from image_classification.files.download import Source


def make_config(num_classes=10, seed=0, **data):
    """Return a configuration with small images and no workers."""
    data = {"BATCH_SIZE": 4, "NUM_WORKERS": 0, "IMAGE_SIZE": 32, **{key: _plain(value) for key, value in data.items()}}
    return build_config([("test", {"DATA": data, "MODEL": {"NUM_CLASSES": num_classes}, "SEED": seed})])


def _plain(value):
    return value if isinstance(value, int | float | bool | str | list | tuple | None) else str(value)


def photo(height, width, seed=0):
    """Return smooth uint8 RGB noise: a resize that is off by a pixel shows, JPEG keeps it."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(image, kind="JPEG", **options):
    """Return the bytes of an image file."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def write_class_folders(root, counts, size=40):
    """Write {class: count} JPEGs ``root/<class>/image_0001.jpg``; return {relative path: bytes}."""
    written = {}
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            path = root / name / f"image_{number:04d}.jpg"
            path.write_bytes(encoded(photo(size, size + number, seed=len(written))))
            written[f"{name}/{path.name}"] = path.read_bytes()
    return written


def tar_bytes(members, mode="w"):
    """Return a tar file of {name: bytes} or [(name, bytes)], or of TarInfo objects without content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members.items() if isinstance(members, dict) else members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def python2_pickle(mapping):
    """Return a protocol-2 pickle whose strings are Python 2's, as in the official CIFAR files."""
    return pickle.dumps(mapping, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar10_members(num_images=8):
    """Return ({name: bytes} of the official archive with few images, {split: (images NHWC, labels)})."""
    generator = np.random.default_rng(0)
    members = {
        "cifar-10-batches-py/batches.meta": python2_pickle({b"label_names": [f"class{n}".encode() for n in range(10)]})
    }
    truth = {"train": ([], []), "val": ([], [])}
    for number in range(6):
        name, split = (f"data_batch_{number + 1}", "train") if number < 5 else ("test_batch", "val")
        data = generator.integers(0, 256, (num_images, 3072), dtype=np.uint8)
        labels = generator.integers(0, 10, num_images).tolist()
        members[f"cifar-10-batches-py/{name}"] = python2_pickle(
            {b"data": data, b"labels": labels, b"batch_label": b"x"}
        )
        truth[split][0].append(data)
        truth[split][1].extend(labels)
    return members, {
        split: (np.concatenate(data).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)
        for split, (data, labels) in truth.items()
    }


def publish_cifar10(monkeypatch, content, url="http://127.0.0.1:9/cifar-10-python.tar.gz"):
    """Let an archive be the one that CIFAR-10's publisher gives."""
    kind, is_present = CIFAR["cifar10"], sources.DOWNLOADS["cifar10"][1]
    source = Source(url, kind.source.file_name, f"md5:{hashlib.md5(content).hexdigest()}")
    monkeypatch.setitem(CIFAR, "cifar10", dataclasses.replace(kind, source=source))
    monkeypatch.setitem(sources.DOWNLOADS, "cifar10", (source, is_present))
