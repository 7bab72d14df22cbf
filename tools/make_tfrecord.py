"""Pack class folders or list files into TFRecord shards with index files.

    python tools/make_tfrecord.py /dataset/imagenet /dataset/imagenet_tfrecord --shards 1024 --shards-val 128

Reads ``train/`` and ``val/`` (or ``train_list.txt``, ``val_list.txt``) and writes ``train/``, ``validation/`` and
``idx_files/`` in the layout that DATA.DATASET=imagenet_tfrecord, TensorFlow and DALI read; labels start at 1. Images
are shuffled over the shards by a fixed seed. A shard appears when it is complete and its checksums were read back; a
run that was stopped, which ends with the shards under way, goes on where it was, a damaged shard is written again, a
sound one of other images is an error.
"""

import concurrent.futures
import multiprocessing
import os
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from image_classification.data.datasets import LARGEST_FILE, require_folder
from image_classification.data.folders import list_class_names, read_class_folders, read_list_file
from image_classification.data.records import check_shards
from image_classification.data.tfrecord import (
    BadRecord,
    frame,
    index_text,
    parse_example,
    scan_records,
    serialize_example,
    unframe,
)
from image_classification.data.tfrecord_dataset import FOLDERS, IMAGE_FEATURE, LABEL_FEATURE
from image_classification.files.plain import open_plain, read_plain
from image_classification.parallel.watch import signals_later
from image_classification.runtime import Parser, UserError, WithDefaults, atomic_write, command, progress_bar

MAX_CLASSES = 1 << 20
NAME_FEATURE = "image/filename"


@command
def main(arguments):
    """Write the shards of both splits and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=WithDefaults)
    parser.add_argument("source", help="folder with train/ and val/, or with train_list.txt and val_list.txt")
    parser.add_argument("output", type="new_folder", help="folder for train/, validation/ and idx_files/")
    parser.add_argument("-shards", type="count", default=1024, help="files of the training set")
    parser.add_argument("-shards_val", type="count", default=128, help="files of the validation set")
    parser.add_argument("-workers", type="count", default=os.cpu_count(), help="processes")
    parser.add_argument("-first_label", type=int, default=1, help="number of the first class in the files")
    parser.add_argument("-seed", type=int, default=0, help="order of the images")
    options = parser.parse_args(arguments)
    require_folder(options.source, "source")
    if not 0 <= options.seed < 1 << 32:
        raise UserError(f"-seed: expected an integer from 0 to 2^32 - 1, found {options.seed}")
    if options.first_label < 0:
        raise UserError(f"-first_label: expected an integer of at least 0, found {options.first_label}")
    splits = {"train": ("-shards", options.shards), "val": ("-shards_val", options.shards_val)}
    source, output = Path(options.source).resolve(), options.output.resolve()
    if output == source or any(output.is_relative_to(source / split) for split in splits):
        raise UserError(f"output: {options.output}: lies among the images; name another folder")
    datasets = {split: _read(options.source, split) for split in splits}
    for split, (flag, num_shards) in splits.items():  # of both, before hours of writing
        if datasets[split] is not None and num_shards > len(datasets[split]):
            raise UserError(f"{flag}: {num_shards} shards for {len(datasets[split])} images of {split}")
    for split, (_, num_shards) in splits.items():
        if datasets[split] is None:
            print(f"{split}: {options.source} has neither {split}_list.txt nor a folder {split}/: nothing is written")
        else:
            written = write_shards(datasets[split], split, options, num_shards)
            print(f"{split}: {len(datasets[split])} images in {num_shards} shards, {written} of them written now")
    return 0


def _read(source, split):
    list_path = os.path.join(source, f"{split}_list.txt")
    if os.path.isfile(list_path):
        return read_list_file(list_path, source, MAX_CLASSES, "the most that this tool takes")
    folder = os.path.join(source, split)
    train = os.path.join(source, "train")  # its folders number the classes of both
    if os.path.isdir(folder):
        return read_class_folders(folder, list_class_names(train) if os.path.isdir(train) else None)
    if split == "train":
        raise UserError(f"{source}: has neither train_list.txt nor a folder train/")
    return None


def write_shards(dataset, split, options, num_shards):
    """Write what is missing of the shards of one split; return how many that was."""
    order = np.random.RandomState(options.seed).permutation(len(dataset))
    folder = FOLDERS[split]
    jobs = []
    for number, indices in enumerate(np.array_split(order, num_shards)):
        name = f"{folder}-{number:05d}-of-{num_shards:05d}"
        path = os.path.join(options.output, folder, name)
        index_path = os.path.join(options.output, "idx_files", folder, name)
        images = [
            (dataset.describe(index), int(dataset.labels[index]) + options.first_label) for index in indices.tolist()
        ]
        jobs.append((path, index_path, images))
    there = Path(options.output, folder)
    check_shards(sorted({*(path for path, _, _ in jobs), *(str(path) for path in there.glob("*"))}))
    # spawn: a fork would copy the threads' locks of whatever the libraries started
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(options.workers, len(jobs)), mp_context=context) as pool:
        with signals_later():  # in the workers for ever: this process decides
            waiting = [pool.submit(_write_shard, job) for job in jobs]
        try:
            with progress_bar(len(jobs), split, "shards") as bar:
                written = 0
                for future in waiting:
                    written += future.result()
                    bar.update()
                return written
        except BaseException:  # Ctrl-C ends with the shards that are under way
            pool.shutdown(cancel_futures=True)
            raise


def _write_shard(job):
    """Write what of one shard and its index is not there and whole; return whether that was anything."""
    path, index_path, images = job
    positions = _positions(path, images)
    is_there = positions is not None
    if not is_there:
        with atomic_write(path) as file:
            for source, label in images:
                file.write(frame(serialize_example(_features(source, read_plain(source, LARGEST_FILE), label))))
        positions = _positions(path, images)
        if positions is None:
            raise UserError(f"{path}: reads back differently from what was written; is the disk sound?")
    index = index_text(positions).encode()
    if is_there and os.path.isfile(index_path) and read_plain(index_path) == index:
        return False
    with atomic_write(index_path) as file:
        file.write(index)
    return True


def _features(source, content, label):
    kind = "JPEG" if content[:2] == b"\xff\xd8" else Path(source).suffix.lstrip(".").upper()
    return {
        IMAGE_FEATURE: content,
        LABEL_FEATURE: label,
        "image/class/synset": os.fsencode(Path(source).parent.name),  # which need not be UTF-8
        NAME_FEATURE: os.fsencode(Path(source).name),
        "image/format": kind,
    }


def _positions(path, images):
    """Return the (offset, length) of each record of a shard; None where it is missing, or a checksum is wrong.

    The checksums cover the images' bytes; that the images are these is told by their names, sizes and labels.

    Raises:
        UserError: it is sound, but holds something else.
    """
    found = []
    try:
        positions = scan_records(path).tolist()
        with open_plain(path) as file:
            for _, length in positions:
                features = parse_example(unframe(file.read(length)))
                contents, names = features.get(IMAGE_FEATURE, []), features.get(NAME_FEATURE, [])
                found.append((list(map(len, contents)), list(map(bytes, names)), features.get(LABEL_FEATURE)))
    except (OSError, UserError, BadRecord):
        return None
    if found != [([os.path.getsize(each)], [os.fsencode(Path(each).name)], [label]) for each, label in images]:
        raise UserError(f"{path}: is a sound shard of other images, labels or -seed; name another folder, or remove it")
    return positions


if __name__ == "__main__":
    sys.exit(main())
