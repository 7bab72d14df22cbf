"""Fetch, verify and unpack a public data set, or check one that is there.

    python tools/prepare_dataset.py cifar10 /dataset/cifar10
    python tools/prepare_dataset.py caltech101 /dataset/caltech101
    python tools/prepare_dataset.py imagenet2012 /dataset/imagenet --check

``--check`` decodes every image of both splits and lists the corrupt and the unreadable ones; nothing is written.
"""

import dataclasses
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import build_config, chosen
from image_classification.config.schema import DATASETS, WITHOUT_FOLDER
from image_classification.runtime import Parser, UserError, command, progress_bar


@command
def main(arguments):
    """Prepare or check one data set and return the exit code: 0 sound, 1 corrupt images, 2 wrong input."""
    parser = Parser(description=__doc__)
    parser.add_argument("dataset", help="name, as in DATA.DATASET: cifar10, folder, ...")
    parser.add_argument("folder", help="folder of the data set, as in DATA.DATA_PATH")
    parser.add_argument("-check", action="store_true", help="decode every image, download nothing")
    parser.add_argument("-num_classes", type="count", help="as in MODEL.NUM_CLASSES (default: that of the data set)")
    options = parser.parse_args(arguments)
    (options.dataset,) = chosen((options.dataset,), DATASETS, "dataset")
    if options.dataset in WITHOUT_FOLDER:
        raise UserError(f"dataset: {options.dataset}: reads no folder: there is nothing to prepare or to check")
    from image_classification.data import build_dataset, settle_classes
    from image_classification.data.sources import DOWNLOADS

    model = {"NUM_CLASSES": options.num_classes} if options.num_classes else {}
    download = options.dataset in DOWNLOADS and not options.check
    data = {"DATASET": options.dataset, "DATA_PATH": options.folder, "DOWNLOAD": download}
    data["SKIP_CORRUPT"] = options.check  # which names each of them
    num_corrupt = 0
    config = build_config([("arguments", {"DATA": data, "MODEL": model})])
    if not model:  # then the data say it
        config = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASSES_GIVEN=False))
    for split in ("train", "val"):
        dataset = build_dataset(config, split)
        if split == "train":
            config = settle_classes(config, dataset)  # as a training does, so that it refuses what that refuses
        if options.check:
            num_corrupt += _check(dataset, split)
        print(f"{split}: {len(dataset)} images, {dataset.num_classes} classes")
    return 1 if num_corrupt else 0


def _check(dataset, split):
    """Decode every image, print those that cannot be decoded or read and return how many they are."""
    from image_classification.data.decode import CorruptImage, decode

    found = 0
    with progress_bar(len(dataset), split, "images") as bar:
        for index in range(len(dataset)):
            try:
                content, _ = dataset.read(index)
                decode(content)
            except (CorruptImage, UserError) as error:  # of the image, or of the archive that it is in
                found += 1
                name = dataset.describe(index)
                bar.write(f"corrupt: {name} ({str(error).removeprefix(f'{name}: ')})")
            bar.update()
    return found


if __name__ == "__main__":
    sys.exit(main())
