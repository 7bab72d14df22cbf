"""Images as a model sees them, without a data set: for predictions, pictures and checks of exported models."""

import re
from collections import Counter
from pathlib import Path

import numpy as np

from .config.values import UNPRINTABLE
from .data.build import build_eval_transform
from .data.datasets import LARGEST_FILE
from .data.decode import CorruptImage, decode
from .data.normalize import Normalize
from .files.plain import read_plain, read_text
from .runtime import UserError, get_logger
from .runtime.errors import some_of

WORDNET_NUMBER = re.compile(r"n\d{8}")  # the names of ImageNet's class folders, in the order of its classes
IMAGENET_CLASSES = Path(__file__).resolve().parent / "weights" / "imagenet_classes.txt"


def eval_pixels(config, paths):
    """Return uint8 [B, size, size, channels]: the evaluation crop of each image file.

    Raises:
        UserError: a file cannot be read or is no image; it is named.
    """
    transform = build_eval_transform(config.DATA)
    crops = []
    for path in paths:
        try:
            crops.append(transform(read_plain(path, LARGEST_FILE)))
        except CorruptImage as error:
            raise UserError(f"{path}: is no image that can be read: {str(error)[:80]}") from None
    return np.stack(crops)


def whole_photo(config, path):
    """Return an image file as uint8 [height, width, channels], and (top, left, bottom, right) of what a model sees."""
    transform = build_eval_transform(config.DATA)
    pixels = decode(read_plain(path, LARGEST_FILE), "pil", config.DATA.IMAGE_CHANNELS, upright=transform.upright)
    return pixels, transform.box(*pixels.shape[:2])


def normalised(config, pixels):
    """Return float32 [B, channels, size, size] for uint8 [B, size, size, channels]."""
    return Normalize(config.DATA.IMAGENET_MEAN, config.DATA.IMAGENET_STD)(pixels.transpose(0, 3, 1, 2))


def class_names(config, path=None):
    """Return the name of each class: of a file, of the configuration, of ImageNet-1k for 1000 classes, else numbers.

    A file has one class a line, `name` or PaddleClas's `0 tench, Tinca tinca`.
    """
    count, known = config.MODEL.NUM_CLASSES, config.MODEL.CLASS_NAMES
    if path is None and known and not (count == 1000 and all(map(WORDNET_NUMBER.fullmatch, known))):
        if len(known) != count:
            raise UserError(f"MODEL.CLASS_NAMES: {len(known)} names, the model has {count} classes")
        return list(known)
    if path is None and count != 1000:
        return [str(index) for index in range(count)]
    try:
        lines = read_text(path or IMAGENET_CLASSES).rstrip().splitlines()
    except UserError as error:
        raise UserError(f"-class_names: {error}") from None
    names = []
    for index, line in enumerate(lines):
        number, _, name = line.partition(" ")
        names.append(name if number == str(index) else line)
        if not line.strip() or UNPRINTABLE.search(line):
            what = "has control characters" if line.strip() else "is empty"
            raise UserError(f"-class_names: {path}:{index + 1}: {what}")
    if len(names) != count:
        raise UserError(f"-class_names: {path}: has {len(names)} lines, the model has {count} classes")
    twice = next((name for name, number in Counter(names).items() if number > 1), None)
    if twice is not None:  # ImageNet has two cranes
        where = some_of([index + 1 for index, name in enumerate(names) if name == twice])
        get_logger().warning(f"-class_names: {path}: {twice} stands in lines {where}: nothing tells them apart")
    return names
