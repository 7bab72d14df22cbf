"""Caltech-101 from the official archive: 8677 photographs of 101 classes, without the class BACKGROUND_Google."""

import os

from ..files.archives import extract_once
from ..files.download import Source
from ..runtime import UserError
from .datasets import require_folder
from .folders import list_class_names, read_class_folders

SOURCE = Source(
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    "caltech-101.zip",
    "md5:3138e1922a9193bfa496528edbbc45d0",
)
FOLDER = "101_ObjectCategories"
ARCHIVE = "101_ObjectCategories.tar.gz"
BACKGROUND = "BACKGROUND_Google"
# as extracted by hand from the zip file, by torchvision, and by us
_PLACES = ("", "caltech-101", "caltech101")


def read_caltech101(root, split, with_background=False, skip_corrupt=False):
    """Return 80 % ("train") or 20 % ("val") of each class; the split depends on nothing but the official files.

    ``root`` holds the folder ``101_ObjectCategories``, the archive of that name, or the zip file around it; an archive
    is extracted there once, whichever process comes first.

    Raises:
        UserError: none of them is there, or the archive is cut or unsafe.
    """
    require_folder(root)
    folder = _find_folder(root)
    names = [name for name in list_class_names(folder) if with_background or name != BACKGROUND]
    if not names:
        raise UserError(f"{folder}: has no class folders")
    return read_class_folders(folder, names, () if with_background else (BACKGROUND,), skip_corrupt).share(split)


def has_caltech101(root):
    """Return whether ``root`` is or holds the folder of the images, or holds one of the archives."""
    places = [os.path.join(place, name) for place in _PLACES for name in (FOLDER, ARCHIVE)]
    is_folder = os.path.basename(os.path.normpath(root)) == FOLDER
    return is_folder or any(os.path.exists(os.path.join(root, place)) for place in (*places, SOURCE.file_name))


def image_folders(root):
    """Return where the class folders are, if they are in ``root`` and no archive."""
    own = [root] if os.path.basename(os.path.normpath(root)) == FOLDER else []
    return [os.path.join(root, place, FOLDER) for place in _PLACES] + own


def _find_folder(root):
    found = next(filter(os.path.isdir, image_folders(root)), None)
    if found:
        return found
    for place in _PLACES:
        archive = os.path.join(root, place, ARCHIVE)
        if os.path.isfile(archive):
            return os.path.join(extract_once(archive, os.path.join(root, "extracted", FOLDER)), FOLDER)
    outer = os.path.join(root, SOURCE.file_name)
    if os.path.isfile(outer):
        unzipped = extract_once(outer, os.path.join(root, "extracted", "caltech-101"), SOURCE)
        archive = os.path.join(unzipped, "caltech-101", ARCHIVE)
        if not os.path.isfile(archive):
            raise UserError(f"{outer}: lacks caltech-101/{ARCHIVE}")
        return os.path.join(extract_once(archive, os.path.join(root, "extracted", FOLDER)), FOLDER)
    raise UserError(
        f"DATA.DATA_PATH: {root} has neither {FOLDER}/ nor {ARCHIVE} nor {SOURCE.file_name};"
        " DATA.DOWNLOAD=True fetches it"
    )
