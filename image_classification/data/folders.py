"""Image files arranged by people: one folder a class, or a text file with a path and a label on each line."""

import codecs
import os
import stat

from ..config.values import UNPRINTABLE
from ..files.plain import open_plain, unreadable
from ..runtime import UserError, get_logger
from .datasets import IMAGE_EXTENSIONS, FileDataset, require_folder
from .labels import NUMBER, count_classes

FEW = 100  # files of a folder that are looked for one by one
LONGEST_LINE = 1 << 14  # bytes: a path has 4096 at most


def list_class_names(root):
    """Return the sorted names of the class folders in ``root``.

    Raises:
        UserError: there is no folder in it.
    """
    require_folder(root)
    try:
        found = sorted(name for name in os.listdir(root) if not name.startswith("."))
    except OSError as error:
        raise unreadable(root, error) from None
    names = [name for name in found if os.path.isdir(os.path.join(root, name))]
    if not names:
        raise UserError(f"{root}: has no class folders, such as {os.path.join(root, 'cat')} for the images of cats")
    for name in names:
        if UNPRINTABLE.search(name):
            folder = os.path.join(root, name)
            raise UserError(f"{folder}: the name of a class has control characters, or is not in UTF-8")
    return names


def list_images(folder):
    """Return (sorted image files, the other files), as paths relative to ``folder``, of what is in it and below it.

    Linked folders are read, too, each folder once.

    Raises:
        UserError: a folder cannot be read.
    """

    def fail(error):
        raise unreadable(error.filename, error)

    top = os.path.realpath(folder)
    found, others, seen = [], [], set()
    for base, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        place = os.path.realpath(base)
        if place in seen or top.startswith(os.path.join(place, "")):  # links may go in a circle
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(base, folder)
        for name in files:
            if not name.startswith("."):
                kind = found if name.lower().endswith(IMAGE_EXTENSIONS) else others
                kind.append(os.path.normpath(os.path.join(relative, name)))
    return sorted(found), others


def read_class_folders(root, class_names=None, ignore=(), skip_corrupt=False):
    """Return the images of the class folders in ``root``; labels follow the sorted folder names.

    Args:
        class_names: the folders that must be there in this order, for an evaluation set that goes with a training set.
        ignore: names of folders that are not read.
        skip_corrupt: an image without a file, such as a broken link, is left to whoever reads it.

    Raises:
        UserError: no class folder, an empty one, one that ``class_names`` does not know, classes one level deeper, or
            an image without a file.
    """
    present = [name for name in list_class_names(root) if name not in ignore]
    class_names = class_names or present
    unknown = sorted(set(present) - set(class_names))
    if unknown:
        raise UserError(f"{os.path.join(root, unknown[0])}: the training set has no class of this name")
    paths, labels, left_out = [], [], []
    for label, name in enumerate(class_names):
        if name not in present:
            continue
        images, others = list_images(os.path.join(root, name))
        left_out += [os.path.join(root, name, other) for other in others]
        if not images:
            raise UserError(f"{os.path.join(root, name)}: class folder has no images ({', '.join(IMAGE_EXTENSIONS)})")
        paths += [os.path.join(name, image) for image in images]
        labels += [label] * len(images)
    _check_depth(root, present, paths)
    missing = [] if skip_corrupt else _missing(root, paths)
    if missing:
        raise UserError(
            f"{root}: {len(missing)} of its {len(paths)} images are broken links or no files, the first is "
            f"{os.path.join(root, missing[0])}; DATA.SKIP_CORRUPT=True leaves such images out"
        )
    warn_of_others(root, left_out)
    return FileDataset(root, paths, labels, class_names)


def warn_of_others(root, left_out):
    """Warn of the files below a folder that are not read, if there are any."""
    if left_out:
        get_logger().warning(f"{root}: {len(left_out)} files are no images by their names: {left_out[0]}, ...")


def _check_depth(root, present, paths):
    """Refuse folders of class folders: no image stands in a class folder itself, and there are folders to choose from.

    One folder in each class folder (``n01443537/images/``) is a layout that some sets have.
    """
    if any(path.count(os.sep) == 1 for path in paths):
        return
    inner = sorted({os.sep.join(path.split(os.sep)[:2]) for path in paths})
    if len(inner) > len(present):
        first = ", ".join(inner[:3])
        raise UserError(
            f"DATA.DATA_PATH: {root}: its folders ({', '.join(present[:3])}) hold folders with images ({first}), not "
            "images: the class folders are one level too deep; name the folder that holds them"
        )


def read_list_file(list_path, root, num_classes, given="MODEL.NUM_CLASSES"):
    """Return the images of a list file with lines ``path label``, paths relative to ``root`` (PaddleViT, PaddleClas).

    Without ``num_classes`` there are as many classes as the labels count; ``given`` says whose number it is, for an
    error.

    Raises:
        UserError: naming file and line, when a line is not a path and a label in 0 .. num_classes - 1; an image is not
            there, or no file.
    """
    paths, labels = [], []
    with open_plain(list_path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line  # editors of Windows write it
            path, _, label = os.fsdecode(line).strip().replace("\t", " ").rpartition(" ")
            if not path and not label:
                continue
            if not path or not NUMBER.fullmatch(label) or "\0" in path or len(line) == LONGEST_LINE:
                raise UserError(f"{list_path}:{number}: {os.fsdecode(line[:80]).strip()!r} is not 'path label'")
            if int(label) < 0 or num_classes and int(label) >= num_classes:
                allowed = f"0..{num_classes - 1} ({given})" if num_classes else "0 and above"
                hint = "; labels start at 0" if int(label) == num_classes and 0 not in labels else ""
                raise UserError(f"{list_path}:{number}: label {label} is outside {allowed}{hint}")
            paths.append(path.strip())
            labels.append(int(label))
    if not paths:
        raise UserError(f"{list_path}: lists no images")
    if num_classes is None:
        num_classes = count_classes(labels, list_path)
    missing = _missing(root, paths)
    if missing:
        first = os.path.join(root, missing[0])
        found = f"{len(missing)} of its {len(paths)} images are not there or no files"
        raise UserError(f"{list_path}: {found}, the first is {first}")
    return FileDataset(root, paths, labels, [str(label) for label in range(num_classes)])


def _missing(root, paths):
    """Return the paths without a file. A folder of many is read as a whole, a thousand times as fast as file by file;
    what may not be read counts as there until it is opened."""
    names_in: dict[str, list[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        names_in.setdefault(folder, []).append(name)
    missing = []
    for folder, names in names_in.items():
        where = os.path.join(root, folder)
        try:
            present = _files(where) if len(names) > FEW else {name for name in names if _is_file(where, name)}
        except (FileNotFoundError, NotADirectoryError):
            present = set()
        except OSError:
            continue
        missing += [os.path.join(folder, name) for name in names if name not in present]
    return missing


def _files(folder):
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries
                if entry.is_file(follow_symlinks=False) or _is_file(folder, entry.name)}  # fmt: skip


def _is_file(folder, name):
    """Return whether there is a plain file, behind a link or not; what may not be looked at counts as one."""
    try:
        return stat.S_ISREG(os.stat(os.path.join(folder, name)).st_mode)
    except PermissionError:
        return True
    except OSError:
        return False
