"""scikit-learn's handwritten digits: 1797 real images that come with a package, so nothing is downloaded."""

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

from .datasets import ArrayDataset
from .splits import stratified_split

IMAGE_SIZE = 32


def read_digits(split):
    """Return the ``train`` (1437) or ``val`` (360) images, uint8 [N, 32, 32, 3], always the same ones."""
    images, labels = _read()
    chosen = stratified_split(labels, split)
    images = np.stack([_enlarge(images[index]) for index in chosen])
    return ArrayDataset(f"digits {split}", images, labels[chosen], [str(digit) for digit in range(10)])


def _read():
    """Return what `sklearn.datasets.load_digits` reads, (float64 [1797, 8, 8], int64 [1797]).

    From the package's file, without importing the package, which takes longer than to import Paddle.
    """
    [folder] = importlib.util.find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _enlarge(image):
    # 8x8 values 0..16 -> 32x32 values 0..255; Pillow computes this in integers, the same on every machine
    small = Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8))
    large = np.asarray(small.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC))
    return np.repeat(large[:, :, None], 3, axis=2)
