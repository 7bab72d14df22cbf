"""Image files arranged by people: one folder a class, or a text file with a path and a label on each line."""

import os

from ..runtime import UserError
from .datasets import IMAGE_EXTENSIONS, FileDataset, require_folder


def list_class_names(root):
    """Return the sorted names of the class folders in ``root``.

    Raises:
        UserError: there is no folder in it.
    """
    require_folder(root)
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{root}: has no class folders")
    return names


def list_images(folder):
    """Return the sorted paths, relative to ``folder``, of the image files in it and below it."""
    found = []
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(base, folder)
        found += [
            os.path.normpath(os.path.join(relative, name))
            for name in files
            if name.lower().endswith(IMAGE_EXTENSIONS) and not name.startswith(".")
        ]
    return sorted(found)


def read_class_folders(root, class_names=None, ignore=()):
    """Return the images of the class folders in ``root``; labels follow the sorted folder names.

    Args:
        class_names: the folders that must be there in this order, for an evaluation set that goes with a training set.
        ignore: names of folders that are not read.

    Raises:
        UserError: no class folder, an empty one, or one that ``class_names`` does not know.
    """
    present = [name for name in list_class_names(root) if name not in ignore]
    class_names = class_names or present
    unknown = sorted(set(present) - set(class_names))
    if unknown:
        raise UserError(f"{os.path.join(root, unknown[0])}: the training set has no class of this name")
    paths, labels = [], []
    for label, name in enumerate(class_names):
        if name not in present:
            continue
        images = list_images(os.path.join(root, name))
        if not images:
            raise UserError(f"{os.path.join(root, name)}: class folder has no images")
        paths += [os.path.join(name, image) for image in images]
        labels += [label] * len(images)
    return FileDataset(root, paths, labels, class_names)


def read_list_file(list_path, root, num_classes):
    """Return the images of a list file with lines ``path label``, paths relative to ``root`` (PaddleViT, PaddleClas).

    Raises:
        UserError: naming file and line, when a line is not a path and a label in 0 .. num_classes - 1.
    """
    paths, labels = [], []
    with open(list_path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if not line:
                continue
            path, _, label = line.replace("\t", " ").rpartition(" ")
            if not path or not label.lstrip("-").isdigit():
                raise UserError(f"{list_path}:{number}: {line[:80]!r} is not 'path label'")
            if not 0 <= int(label) < num_classes:
                raise UserError(
                    f"{list_path}:{number}: label {label} is outside 0..{num_classes - 1}"
                    f" (MODEL.NUM_CLASSES is {num_classes})"
                )
            paths.append(path.strip())
            labels.append(int(label))
    if not paths:
        raise UserError(f"{list_path}: lists no images")
    return FileDataset(root, paths, labels, [str(label) for label in range(num_classes)])
