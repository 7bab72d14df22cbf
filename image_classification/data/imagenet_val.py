"""ImageNet's official validation archive, read without extracting it."""

import os
import struct

from ..files.plain import read_plain, read_text
from ..runtime import UserError
from .labels import text_label
from .matlab import read_structs
from .records import RecordDataset
from .tar_shards import list_members

ARCHIVE = "ILSVRC2012_img_val.tar"
LISTING_LIMIT = 8 << 20  # bytes; 50,000 lines have 2 MB
META_LIMIT = 4 << 20  # bytes; the official one has 75 kB


def read_imagenet_val(root):
    """Return ImageNet's validation images from ``ILSVRC2012_img_val.tar`` and a ground-truth file beside it.

    The ground truth is ``val.txt`` (Caffe: lines "file label", labels by sorted WordNet number), or
    ``ILSVRC2012_validation_ground_truth.txt`` with ``meta.mat`` from the official development kit. The kit numbers the
    classes 1-1000 in its own order; ``meta.mat`` says which WordNet number each has.

    Raises:
        UserError: a file is missing, cut, or does not fit the others.
    """
    path = os.path.join(root, ARCHIVE)
    found = sorted((os.path.basename(name), offset, length) for name, offset, length in list_members(path))
    labels, class_names = _labels(root, [name for name, _, _ in found])
    positions = [(0, offset, length) for _, offset, length in found]
    return RecordDataset([path], positions, labels, class_names)


def _labels(root, names):
    listed = os.path.join(root, "val.txt")
    if os.path.isfile(listed):
        pairs = {}
        for where, line in _lines(listed):
            name, _, label = line.rpartition(" ")
            pairs[name.strip()] = text_label(label, where)
        missing = [name for name in names if name not in pairs]
        if missing:
            raise UserError(f"{listed}: has no label for {missing[0]}")
        return [pairs[name] for name in names], [str(label) for label in range(1000)]
    truth = os.path.join(root, "ILSVRC2012_validation_ground_truth.txt")
    meta = os.path.join(root, "meta.mat")
    for needed in (truth, meta):
        if not os.path.isfile(needed):
            raise UserError(
                f"{needed}: missing; {ARCHIVE} needs val.txt, or the ground truth and meta.mat of the"
                " development kit"
            )
    wordnet_numbers = _kit_classes(meta)
    kit_labels = [text_label(line, where) for where, line in _lines(truth)]
    if len(kit_labels) != len(names):
        raise UserError(f"{truth}: has {len(kit_labels)} labels, {ARCHIVE} has {len(names)} images")
    class_names = sorted(wordnet_numbers.values())
    position = {name: label for label, name in enumerate(class_names)}
    try:
        return [position[wordnet_numbers[label]] for label in kit_labels], class_names
    except KeyError as error:
        raise UserError(f"{truth}: label {error} is not in {meta}") from error


def _lines(path):
    """Return [(file:line, text)] of the lines of a text file that are not blank."""
    lines = enumerate(read_text(path, LISTING_LIMIT).splitlines(), start=1)
    return [(f"{path}:{number}", line) for number, line in lines if line.strip()]


def _kit_classes(meta):
    """Return {ILSVRC2012 number: WordNet number} of the classes without children.

    Raises:
        UserError: the file is not the development kit's.
    """
    try:
        synsets = read_structs(read_plain(meta, META_LIMIT), "synsets")
        leaves = [each for each in synsets if each["num_children"] == 0]
        found = {int(each["ILSVRC2012_ID"]): each["WNID"] for each in leaves}
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
        raise UserError(f"{meta}: is not the development kit's ({type(error).__name__} {str(error)[:80]})") from None
    if not all(isinstance(name, str) and name.isprintable() for name in found.values()):
        raise UserError(f"{meta}: is not the development kit's: a class has no name")
    return found
