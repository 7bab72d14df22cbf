"""The rows of tools/benchmark_data.py: functions that return an iterator over the batches of one epoch."""

import functools
import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from image_classification.config import build_config
from image_classification.data import build_train_loader
from image_classification.data.datasets import require_folder
from image_classification.data.folders import read_class_folders
from image_classification.runtime import UserError
from image_classification.tools import make_tfrecord
from image_classification.tools.parts.benchmark_data_steps import MEAN, SIZE, STD, paddleclas_steps, torchvision_steps


def build_rows(root, scratch, cleanup, options):
    """Return {name: function that returns an iterator over the batches of one epoch}."""
    train = os.path.join(root, "train")
    require_folder(train, "--data")
    dataset = read_class_folders(train)
    if min(len(dataset), options.images) < options.batch_size:
        raise UserError(f"--batch-size: {options.batch_size} is more than the {len(dataset)} images or --images")
    records = os.path.join(scratch, "records")
    rows = {
        "ours (class folders)": _our_loader("folder", root, dataset, options),
        "ours (TFRecord)": _our_records(root, records, dataset, options),
        "ours (class folders, pil)": _our_loader("folder", root, dataset, options, RESIZE_LIBRARY="pil"),
        "torchvision steps": _paddle_loader(dataset, torchvision_steps, options),
        "PaddleClas steps": _paddle_loader(dataset, paddleclas_steps, options),
    }
    if options.paddleclas:
        rows["PaddleClas itself"] = _paddleclas(root, scratch, cleanup, dataset, options)
    try:
        import nvidia.dali  # noqa: F401 (is it there?)

        rows["ours (DALI, class folders)"] = _our_loader("folder", root, dataset, options, LOADER="dali")
        rows["DALI (its own reader)"] = _dali(root, dataset, options)
    except ImportError:
        print("DALI is not installed: no row for it")
    return rows


def _our_loader(name, root, dataset, options, **data):
    data = {
        "DATASET": name,
        "DATA_PATH": root,
        "BATCH_SIZE": options.batch_size,
        "NUM_WORKERS": options.workers,
        "IMAGE_SIZE": SIZE,
        "IMAGENET_MEAN": MEAN,
        "IMAGENET_STD": STD,
        **data,
    }
    model = {"NUM_CLASSES": dataset.num_classes}
    loader = functools.cache(lambda: build_train_loader(build_config([("benchmark", {"DATA": data, "MODEL": model})])))

    def epoch():
        loader().set_epoch(loader().epoch + 1)
        return iter(loader())

    return epoch


def _our_records(root, records, dataset, options):
    @functools.cache
    def loader_epoch():
        make_tfrecord.main([root, records, "--shards", "4", "--shards-val", "1", "--workers", "2"])
        return _our_loader("imagenet_tfrecord", records, dataset, options)

    return lambda: loader_epoch()()


def _paddle_loader(dataset, steps, options):
    @functools.cache
    def loader():
        import paddle

        class Images(paddle.io.Dataset):
            def __len__(self):
                return len(dataset)

            def __getitem__(self, index):
                content, label = dataset.read(index)
                return steps(content), label

        return paddle.io.DataLoader(
            Images(),
            batch_size=options.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=options.workers,
            persistent_workers=True,
        )

    return lambda: iter(loader())


def _paddleclas(root, scratch, cleanup, dataset, options):
    """Return an epoch of PaddleClas's own pipeline, which runs in a process of another Python."""
    if not os.path.isdir(os.path.join(options.paddleclas, "ppcls", "data")):
        raise UserError(f"--paddleclas: {options.paddleclas}: has no ppcls/data")
    if shutil.which(options.paddleclas_python) is None:
        raise UserError(f"--paddleclas-python: {options.paddleclas_python}: no such program")
    list_path = os.path.join(scratch, "train_list.txt")
    with open(list_path, "w", encoding="utf-8") as file:
        file.writelines(f"{dataset.describe(index)}\t{label}\n" for index, label in enumerate(dataset.labels))
    request = {
        "source": os.path.abspath(options.paddleclas),
        "root": os.path.join(root, "train"),
        "list": list_path,
        "batch_size": options.batch_size,
        "workers": options.workers,
    }
    script = str(Path(__file__).with_name("benchmark_paddleclas.py"))

    @functools.cache
    def process():
        started = subprocess.Popen(
            [options.paddleclas_python, script, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        cleanup.callback(started.communicate)  # closes its input, at which it ends: before its images go
        return started

    def epoch():
        num_batches = min(math.ceil(options.images / options.batch_size), len(dataset) // options.batch_size)
        process().stdin.write(f"{num_batches}\n")
        process().stdin.flush()
        for _ in range(num_batches):
            line = process().stdout.readline()
            if not line:
                raise UserError("--paddleclas: PaddleClas ended; its messages are above")
            yield np.broadcast_to(np.float32(0), json.loads(line)), None  # the pixels stay where they were made

    return epoch


def _dali(root, dataset, options):
    """Return an epoch of DALI's own file reader, random-crop decoder, resize and normalisation."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=options.batch_size, num_threads=options.workers, device_id=None, prefetch_queue_depth=2)
    def graph():
        contents, labels = fn.readers.file(file_root=os.path.join(root, "train"), random_shuffle=True)
        images = fn.decoders.image_random_crop(contents, random_area=[0.08, 1.0])
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=False)
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            dtype=types.FLOAT,
            output_layout="CHW",
        )
        return images, labels

    @functools.cache
    def pipeline():
        built = graph()
        built.build()
        return built

    def epoch():
        for _ in range(len(dataset) // options.batch_size):
            images, labels = pipeline().run()
            yield np.array(images.as_array()), labels

    return epoch
