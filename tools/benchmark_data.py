"""Measure training input: images per second of this project's loader and of what other projects do.

    python tools/benchmark_data.py                      # makes 512 JPEGs of 500x375 pixels
    python tools/benchmark_data.py --data /dataset/imagenet --images 4096 --workers 8

Every row reads the same JPEG files, takes a random resized crop of 224 pixels, flips half of them and hands out
normalised float32 [B, 3, 224, 224]. The rows take turns for several rounds; the table holds medians over the rounds and
ranges, ratios are between rows of the same round. "CPU" is the processor time of all processes of a row for one image,
which other programs on the machine disturb less.

- ours: the loader of the training commands, from class folders and from TFRecord files
- torchvision: Pillow decodes, crops and scales with antialiasing, NumPy converts; the steps of its training reference
- PaddleClas: OpenCV decodes, crops and scales, NumPy normalises in the worker; the steps of its ResNet-50 recipe
- PaddleClas itself, with --paddleclas: its data set class and transforms, in its own environment
- DALI: its CPU pipeline, and ours on top of it, where nvidia-dali-cuda120 is installed

The two rows of steps run in paddle.io.DataLoader with the same number of worker processes. PaddleClas itself needs an
environment of its own and its sources, since its wheel comes without its training data code:

    git clone https://github.com/PaddlePaddle/PaddleClas /tmp/PaddleClas
    python -m venv /tmp/clas && /tmp/clas/bin/pip install paddlepaddle opencv-python-headless scikit-learn
    /tmp/clas/bin/pip install pyyaml requests six matplotlib easydict prettytable tqdm ujson
    python tools/benchmark_data.py --paddleclas /tmp/PaddleClas --paddleclas-python /tmp/clas/bin/python
"""

import argparse
import contextlib
import functools
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from image_classification.runtime import UserError, set_threads

set_threads(1)  # before NumPy, OpenCV and Paddle: the workers are the parallelism

import cv2
import numpy as np
from PIL import Image

from image_classification.config import build_config
from image_classification.data import build_train_loader
from image_classification.data.datasets import require_folder
from image_classification.data.folders import read_class_folders

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main(arguments=None):
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", help="folder with train/ and class folders; none: JPEGs are made")
    parser.add_argument("--images", type=int, default=512, help="images of a round")
    parser.add_argument("--batch-size", type=int, default=64, help="images of a batch")
    parser.add_argument("--workers", type=int, default=2, help="worker processes or threads of every row")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are measured, after one to warm up")
    parser.add_argument("--paddleclas", metavar="FOLDER", help="sources of PaddleClas, for a row of PaddleClas itself")
    parser.add_argument("--paddleclas-python", default=sys.executable, help="Python that has what PaddleClas needs")
    parser.add_argument("--rows", nargs="+", help="names of rows, or beginnings of them")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as cleanup:
            root = options.data or make_images(os.path.join(scratch, "images"), options.images)
            rows = _rows(root, scratch, cleanup, options)
            chosen = {
                name: row for name, row in rows.items()
                if not options.rows or any(name.startswith(wanted) for wanted in options.rows)
            }  # fmt: skip
            if not chosen:
                raise UserError(f"--rows: {' '.join(options.rows)}: none of {', '.join(rows)} begins so")
            print_table(measure(chosen, options.rounds, options.images))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make_images(root, count):
    """Write ``count`` JPEGs of 500x375 pixels, cut from the two photographs that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    generator = np.random.default_rng(0)
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        width = int(generator.integers(400, 560))
        height = width * 3 // 4
        top = int(generator.integers(photograph.shape[0] - height + 1))
        left = int(generator.integers(photograph.shape[1] - width + 1))
        image = cv2.resize(
            photograph[top : top + height, left : left + width], (500, 375), interpolation=cv2.INTER_CUBIC
        )
        folder = os.path.join(root, "train", f"class{number % 4}")
        os.makedirs(folder, exist_ok=True)
        cv2.imwrite(os.path.join(folder, f"{number:06d}.jpg"), image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
    return root


def _rows(root, scratch, cleanup, options):
    """Return {name: function that returns an iterator over the batches of one epoch}."""
    train = os.path.join(root, "train")
    require_folder(train, "--data")
    dataset = read_class_folders(train)
    if min(len(dataset), options.images) < options.batch_size:
        raise UserError(f"--batch-size: {options.batch_size} is more than the {len(dataset)} images or --images")
    records = os.path.join(scratch, "records")
    rows = {
        "ours (class folders)": _our_loader("folder", root, dataset, options),
        "ours (TFRecord)": functools.partial(_our_records, root, records, dataset, options),
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


def _our_records(root, records, dataset, options, _epoch=[]):  # noqa: B006 (the default is the memory between rounds)
    if not _epoch:
        import make_tfrecord

        make_tfrecord.main([root, records, "--shards", "4", "--shards-val", "1", "--workers", "2"])
        _epoch.append(_our_loader("imagenet_tfrecord", records, dataset, options))
    return _epoch[0]()


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


def torchvision_steps(content):
    """Return float32 [3, 224, 224] as RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize make it."""
    import io

    image = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = image.size
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    image = image.crop((left, top, left + w, top + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)).astype(np.float32) / np.float32(255)
    pixels -= np.array(MEAN, np.float32)[:, None, None]
    pixels /= np.array(STD, np.float32)[:, None, None]
    return pixels


def paddleclas_steps(content):
    """Return float32 [3, 224, 224] as DecodeImage, RandCropImage, RandFlipImage and NormalizeImage make it."""
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    height, width = pixels.shape[:2]
    aspect = math.sqrt(random.uniform(3 / 4, 4 / 3))
    bound = min(width / height / aspect**2, height / width * aspect**2)
    side = math.sqrt(width * height * random.uniform(min(0.08, bound), min(1.0, bound)))
    w, h = int(side * aspect), int(side / aspect)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    pixels = cv2.resize(pixels[top : top + h, left : left + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    if random.randint(0, 1):
        pixels = cv2.flip(pixels, 1)
    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    pixels = (pixels.astype(np.float32) * np.float32(1 / 255) - mean) / std
    return pixels.transpose(2, 0, 1)


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


def measure(rows, rounds, max_images):
    """Return {name: [(images per second, CPU seconds per image) of each round]}; a round before them warms up."""
    measured = {name: [] for name in rows}
    for number in range(rounds + 1):
        for name, epoch in rows.items():
            # The first round starts the workers and fills the page cache.
            images, seconds, cpu_seconds = _one_round(epoch, max_images)
            if number:
                measured[name].append((images / seconds, cpu_seconds / images))
    return measured


def _one_round(epoch, max_images):
    cpu, start, count = _cpu_seconds(), time.perf_counter(), 0
    for images, *_ in epoch():
        assert tuple(images.shape[1:]) == (3, SIZE, SIZE)
        count += images.shape[0]
        if count >= max_images:
            break
    return count, time.perf_counter() - start, _cpu_seconds() - cpu


def _cpu_seconds():
    """Return the processor time of this process and of all its living and waited-for descendants."""
    import psutil

    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def print_table(measured):
    """Print the rows as a Markdown table: medians, and how often the first row is as fast as each, round by round."""
    first = np.array(next(iter(measured.values())))
    print("| input | images/s | CPU ms/image | speed, first row / this | CPU, this / first row |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, rounds in measured.items():
        rates, cpu = np.array(rounds).T
        cells = [
            _with_range(rates, ".0f"),
            _with_range(cpu * 1e3, ".2f"),
            _with_range(first[:, 0] / rates, ".2f"),
            _with_range(cpu / first[:, 1], ".2f"),
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def _with_range(values, form):
    return f"{np.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    sys.exit(main())
