"""One sample, made the same way in the training process and in a worker: read, transform, store in the batch."""

import dataclasses

import cv2
import numpy as np

from ..runtime import UserError
from .decode import CorruptImage
from .sampler import sample_rng

MAX_REPLACEMENTS = 100


@dataclasses.dataclass
class SampleMaker:
    """Everything a sample depends on besides (epoch, index, repeat)."""

    dataset: object
    transform: object
    num_classes: int
    seed: int
    given: str = "MODEL.NUM_CLASSES"  # what says how many classes there are, for an error
    skip_corrupt: bool = False
    replace_corrupt: bool = False  # training keeps its batches full, evaluation must not count an image twice

    def make(self, epoch, index, repeat, out, on_skip):
        """Write uint8 [channels, size, size] into ``out`` and return the label, or None for a corrupt image left out.

        ``on_skip(index, reason)`` is called for each corrupt image.

        Raises:
            UserError: naming the file, for an image that cannot be decoded or a label out of range.
        """
        rng = sample_rng(self.seed, epoch, index, repeat)
        for candidate in range(index, index + MAX_REPLACEMENTS):
            candidate %= len(self.dataset)
            try:
                content, label = self.dataset.read(candidate)
                pixels = self.transform(content, rng)
            except CorruptImage as error:
                if not self.skip_corrupt:
                    raise UserError(
                        f"{self.dataset.describe(candidate)}: corrupt image ({error});"
                        " DATA.SKIP_CORRUPT=True leaves such images out"
                    ) from error
                on_skip(candidate, str(error))
                if not self.replace_corrupt:
                    return None
                continue
            self.check_label(candidate, label)
            to_planes(pixels, out)
            return label
        raise UserError(f"{self.dataset.describe(index)} and the next {MAX_REPLACEMENTS - 1} images are corrupt")

    def check_label(self, index, label):
        """Raise UserError unless the label of an image is in 0 .. num_classes - 1."""
        if not 0 <= label < self.num_classes:
            raise UserError(
                f"{self.dataset.describe(index)}: label {label} is outside 0..{self.num_classes - 1}"
                f" ({self.given}{getattr(self.dataset, 'label_hint', '')})"
            )


def to_planes(pixels, out):
    """Store uint8 [height, width, channels] in ``out``, uint8 [channels, height, width] in one piece."""
    if out.shape[0] == 3 and pixels.strides[1:] == (3, 1):
        cv2.split(pixels, list(out))  # five times as fast as NumPy's transposed copy
    else:
        np.copyto(out, pixels.transpose(2, 0, 1))
