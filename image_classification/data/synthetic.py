"""Noise in the shape of a data set: measures a model's speed without a disk or a decoder."""

import numpy as np

from .datasets import ArrayDataset

NUM_DIFFERENT = 16


class SyntheticDataset(ArrayDataset):
    """``length`` uint8 images [size, size, channels], of which a few are different; labels in turn."""

    def __init__(self, length, size, channels, num_classes):
        generator = np.random.default_rng(0)
        noise = generator.integers(0, 256, (NUM_DIFFERENT, size, size, channels), dtype=np.uint8)
        labels = np.arange(length) % num_classes
        super().__init__("synthetic", noise, labels, [str(label) for label in range(num_classes)])

    def read(self, index):
        """Return (uint8 pixels, label)."""
        return self.images[index % NUM_DIFFERENT], int(self.labels[index])
