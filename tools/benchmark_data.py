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

import contextlib
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.runtime import Parser, UserError, WithDefaults, command, set_threads

set_threads(1)  # before NumPy, OpenCV and Paddle: the workers are the parallelism

import cv2
import numpy as np

from image_classification.tools.parts.benchmark_data_steps import SIZE


@command
def main(arguments):
    """Print the table and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=WithDefaults)
    parser.add_argument("-data", help="folder with train/ and class folders; none: JPEGs are made")
    parser.add_argument("-images", type="count", default=512, help="images of a round")
    parser.add_argument("-batch_size", type="count", default=64, help="images of a batch")
    parser.add_argument("-workers", type=int, default=2, help="worker processes or threads of every row")
    parser.add_argument("-rounds", type="count", default=5, help="rounds that are measured, after one to warm up")
    parser.add_argument("-paddleclas", metavar="FOLDER", help="sources of PaddleClas, for a row of PaddleClas itself")
    parser.add_argument("-paddleclas_python", default=sys.executable, help="Python that has what PaddleClas needs")
    parser.add_argument("-rows", nargs="+", help="names of rows, or beginnings of them")
    options = parser.parse_args(arguments)
    from image_classification.tools.parts.benchmark_data_rows import build_rows

    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as cleanup:
        root = options.data or make_images(os.path.join(scratch, "images"), options.images)
        rows = build_rows(root, scratch, cleanup, options)
        chosen = {
            name: row for name, row in rows.items()
            if not options.rows or any(name.startswith(wanted) for wanted in options.rows)
        }  # fmt: skip
        if not chosen:
            raise UserError(f"-rows: {' '.join(options.rows)}: none of {', '.join(rows)} begins so")
        print_table(measure(chosen, options.rounds, options.images))
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
