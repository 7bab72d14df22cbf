"""Every data set by its name in DATA.DATASET."""

import functools
import os

from ..files.download import download_once
from ..runtime import UserError
from . import imagenet_val
from .caltech101 import SOURCE as CALTECH101_SOURCE
from .caltech101 import has_caltech101, image_folders, read_caltech101
from .cifar import CIFAR, has_cifar, read_cifar
from .classes import given_classes, wrong_number
from .datasets import check_labels, require_folder
from .decode import check_channels
from .digits import read_digits
from .folders import list_class_names, read_class_folders, read_list_file
from .synthetic import SyntheticDataset
from .tar_shards import read_tar_shards
from .tfrecord_dataset import FOLDERS, read_tfrecords

# name -> (where it is published, whether a folder holds it already)
DOWNLOADS = {
    "cifar10": (CIFAR["cifar10"].source, functools.partial(has_cifar, "cifar10")),
    "cifar100": (CIFAR["cifar100"].source, functools.partial(has_cifar, "cifar100")),
    "caltech101": (CALTECH101_SOURCE, has_caltech101),
}
OTHERWISE = {"train": ("training",), "val": ("validation", "valid", "test")}  # what else people call a split's folder


def _imagenet2012(config, split):
    """``<split>_list.txt`` if there is one, else the folder ``<split>/``, else the official tar file for "val"."""
    root = config.DATA.DATA_PATH
    require_folder(root)
    if os.path.isfile(os.path.join(root, f"{split}_list.txt")):
        return _list(config, split)
    if os.path.isdir(os.path.join(root, split)):
        return _class_folders(config, split)
    if split == "val" and os.path.isfile(os.path.join(root, imagenet_val.ARCHIVE)):
        return imagenet_val.read_imagenet_val(root)
    tar = f" nor {imagenet_val.ARCHIVE}" if split == "val" else ""
    hint = "class folders alone are -dataset=folder, which takes a fifth for evaluation"
    raise UserError(
        f"DATA.DATA_PATH: {root} has neither {split}_list.txt nor a folder {split}/{tar}; {_link(root, split) or hint}"
    )


def _link(root, split):
    """Return what to do where a split's folder has another name than ``train`` or ``val``, "" where none has."""
    there = {name.lower(): name for name in sorted(os.listdir(root)) if os.path.isdir(os.path.join(root, name))}
    found = next((there[name] for name in (split, *OTHERWISE[split]) if name in there), None)
    return f"is it {found}/? rename it, or link it as {split}" if found else ""


def _classes_of_labels(config):
    """Return how many classes the labels of a list or of shards count, None for as many as they do themselves.

    An evaluation set may lack the last ones, so there the model's number holds.
    """
    return config.MODEL.NUM_CLASSES if config.MODEL.CLASSES_GIVEN or config.EVAL else None


def _class_folders(config, split):
    # What the model was trained for numbers the classes, else the training folders do, so that an evaluation set with
    # fewer of them gets the same labels.
    root = config.DATA.DATA_PATH
    train = os.path.join(root, "train")
    class_names = list(config.MODEL.CLASS_NAMES) if config.EVAL else None
    if split == "val" and not class_names and os.path.isdir(train):
        class_names = list_class_names(train)
    return read_class_folders(os.path.join(root, split), class_names, skip_corrupt=config.DATA.SKIP_CORRUPT)


def _folder(config, split):
    """``train/`` and ``val/`` with class folders, or class folders alone, of which a fixed fifth is for evaluation."""
    root = config.DATA.DATA_PATH
    require_folder(root)
    if os.path.isdir(os.path.join(root, split)):
        return _class_folders(config, split)
    there, link = "val" if split == "train" else "train", _link(root, split)
    if os.path.isdir(os.path.join(root, there)):
        hint = "give both, or class folders alone, of which a fixed fifth is for evaluation"
        raise UserError(f"DATA.DATA_PATH: {root} has {there}/ and no {split}/: {link or hint}")
    if link and _link(root, there):
        raise UserError(f"DATA.DATA_PATH: {root} has no {split}/: {link}")
    return read_class_folders(root, skip_corrupt=config.DATA.SKIP_CORRUPT).share(split)


def searched_folders(data):
    """Return the folders in which everything counts as data of a DATA section: images of a class, or records."""
    if data.DATASET == "caltech101":
        return image_folders(data.DATA_PATH)
    names = {"folder": ("train", "val"), "imagenet2012": ("train", "val"), "imagenet_tfrecord": FOLDERS.values()}
    splits = [os.path.join(data.DATA_PATH, split) for split in names.get(data.DATASET, ())]
    flat = data.DATASET == "folder" and not any(map(os.path.isdir, splits))
    return [data.DATA_PATH] if flat else splits


def _list(config, split):
    root = config.DATA.DATA_PATH
    require_folder(root)
    path = os.path.join(root, f"{split}_list.txt")
    if not os.path.isfile(path):
        raise UserError(f"DATA.DATA_PATH: {root} has no {split}_list.txt")
    return read_list_file(path, root, _classes_of_labels(config), given_classes(config.MODEL))


def _synthetic(config, split):
    data = config.DATA
    return SyntheticDataset(data.SYNTHETIC_IMAGES, data.IMAGE_SIZE, data.IMAGE_CHANNELS, config.MODEL.NUM_CLASSES)


DATASETS = {
    "digits": lambda config, split: read_digits(split),
    "imagenet2012": _imagenet2012,
    "imagenet_tfrecord": lambda config, split: read_tfrecords(
        config.DATA.DATA_PATH, split, config.MODEL.NUM_CLASSES, config.DATA.TFRECORD_FIRST_LABEL
    ),
    "cifar10": lambda config, split: read_cifar("cifar10", config.DATA.DATA_PATH, split),
    "cifar100": lambda config, split: read_cifar("cifar100", config.DATA.DATA_PATH, split),
    "caltech101": lambda config, split: read_caltech101(
        config.DATA.DATA_PATH, split, config.DATA.CALTECH_BACKGROUND, config.DATA.SKIP_CORRUPT
    ),
    "folder": _folder,
    "list": _list,
    "tar_shards": lambda config, split: read_tar_shards(config.DATA.DATA_PATH, split, _classes_of_labels(config)),
    "synthetic": _synthetic,
}


def build_dataset(config, split):
    """Return the data set of DATA.DATASET for ``split`` "train" or "val".

    With DATA.DOWNLOAD a public archive that is not there is fetched first, by one process while the others wait.

    Raises:
        UserError: a missing or malformed file, more classes than MODEL.NUM_CLASSES, or a label outside of it.
    """
    if config.DATA.DATASET != "synthetic":  # whose arrays have as many channels as are asked for
        check_channels(config.DATA.IMAGE_CHANNELS)
    name = config.DATA.DATASET
    if config.DATA.DOWNLOAD:
        if name not in DOWNLOADS:
            raise UserError(f"DATA.DOWNLOAD: {name} has no public download; these have: {', '.join(sorted(DOWNLOADS))}")
        source, is_present = DOWNLOADS[name]
        if not is_present(config.DATA.DATA_PATH):
            download_once(source, config.DATA.DATA_PATH)
    dataset = DATASETS[name](config, split)
    if config.MODEL.CLASSES_GIVEN:
        if dataset.num_classes > config.MODEL.NUM_CLASSES:
            raise wrong_number(config, dataset)
        check_labels(dataset, config.MODEL)
    return dataset
