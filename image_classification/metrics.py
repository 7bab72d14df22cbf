"""Evaluation figures from logits and labels, in NumPy, exact over any split of the images into batches and processes.

Every sum is an integer, also that of the loss, so adding in another order, or on another number of processes, gives the
same bits. Arguments may be Paddle tensors of any float dtype or NumPy arrays.
"""

import numpy as np
import paddle

LOSS_UNITS = 2**24  # a loss is counted in steps of 2**-24, finer than float32 resolves a loss above 0.5
LARGEST_LOSS = 1e5  # beyond it a loss counts as infinite


def num_correct(logits, labels):
    """Return how many images have their label, the largest share of a soft one, as top-1; still on the device.

    Of logits of several heads, [B, heads, C], the mean counts.
    """
    logits = logits.mean(axis=1) if logits.ndim == 3 else logits
    target = labels if labels.ndim == 1 else labels.argmax(axis=-1)
    return (logits.astype("float32").argmax(axis=-1) == target).sum()


def topk_correct(logits, labels, ks=(1, 5)):
    """Return for each k how many images have their label among the k largest logits, as a tuple of ints.

    Equal logits rank by class index. An image with a NaN is wrong. Soft targets [B, C] count as their largest class.
    """
    logits, labels = _logits(logits), _labels(labels)
    own = np.take_along_axis(logits, labels[:, None], axis=1)  # [B, 1]
    first = np.arange(logits.shape[1]) < labels[:, None]
    rank = ((logits > own) | ((logits == own) & first)).sum(axis=1)
    rank[np.isnan(logits).any(axis=1)] = logits.shape[1]
    return tuple(int((rank < min(k, logits.shape[1])).sum()) for k in ks)


def cross_entropy(logits, labels):
    """Return the loss of each image, float64 [B]."""
    logits, labels = _logits(logits).astype("float64"), _labels(labels)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
        return log_sum - np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


class Accumulator:
    """Top-1, top-5 and cross entropy over the images added so far."""

    def __init__(self):
        self.sums = np.zeros(5, "int64")  # correct at 1, correct at 5, loss in units, non-finite losses, images

    def add(self, logits, labels):
        """Add a batch: logits [B, C], labels int64 [B]."""
        losses = cross_entropy(logits, labels)
        finite = np.abs(losses) <= LARGEST_LOSS  # False for NaN
        units = np.rint(losses[finite] * LOSS_UNITS).astype("int64").sum()
        self.sums += (*topk_correct(logits, labels, (1, 5)), units, (~finite).sum(), len(losses))

    def merge(self, sums):
        """Add the ``sums`` of another accumulator, such as those of another process."""
        self.sums += np.asarray(sums, "int64")

    def result(self):
        """Return ``{"top1", "top5", "loss", "images", "non_finite"}``: fractions 0-1, mean loss (inf after a non-finite
        one), how many images, and how many of them had a loss that is not finite.

        Without any image the fractions and the loss are NaN.
        """
        top1, top5, units, broken, images = (int(number) for number in self.sums)
        if not images:
            return {"top1": float("nan"), "top5": float("nan"), "loss": float("nan"), "images": 0, "non_finite": 0}
        loss = float("inf") if broken else units / LOSS_UNITS / images
        return {"top1": top1 / images, "top5": top5 / images, "loss": loss, "images": images, "non_finite": broken}


class ClassReport:
    """Confusion matrix and calibration over the images added so far.

    Args:
        bins: equal intervals of the confidence for the calibration error (15: Guo et al. 2017).
    """

    def __init__(self, num_classes, bins=15):
        self.confusion = np.zeros((num_classes, num_classes), "int64")  # [label, prediction]
        self.calibration = np.zeros((3, bins), "int64")  # images, correct ones, confidence in units

    def add(self, logits, labels):
        """Add a batch: logits [B, C], labels int64 [B]; an image with a NaN is wrong: taken for the next class."""
        logits, labels = _logits(logits), _labels(labels)
        broken = np.isnan(logits).any(axis=1)  # whose largest logit NumPy finds at the NaN
        predictions = np.where(broken, (labels + 1) % logits.shape[1], logits.argmax(axis=1))
        np.add.at(self.confusion, (labels, predictions), 1)
        confidence = np.nan_to_num(np.exp(-cross_entropy(logits, predictions)))  # [B]
        bins = self.calibration.shape[1]
        place = np.clip(np.ceil(confidence * bins).astype("int64") - 1, 0, bins - 1)  # bin i holds (i/bins, (i+1)/bins]
        np.add.at(self.calibration[0], place, 1)
        np.add.at(self.calibration[1], place, predictions == labels)
        np.add.at(self.calibration[2], place, np.rint(confidence * LOSS_UNITS).astype("int64"))

    @property
    def sums(self):
        """Everything as one int64 vector, to be summed over processes and given to :meth:`merge`."""
        return np.concatenate([self.confusion.ravel(), self.calibration.ravel()])

    def merge(self, sums):
        """Add the ``sums`` of another report of the same shape."""
        confusion, calibration = np.split(np.asarray(sums, "int64"), [self.confusion.size])
        self.confusion += confusion.reshape(self.confusion.shape)
        self.calibration += calibration.reshape(self.calibration.shape)

    def per_class_accuracy(self):
        """Return the share of each class's images that were recognised, float64 [C]; NaN for a class without images."""
        images = self.confusion.sum(axis=1)
        return np.where(images > 0, np.diag(self.confusion) / np.maximum(images, 1), np.nan)

    def worst_classes(self, count=10):
        """Return [(class index, accuracy, images)] of the ``count`` worst classes that have images, worst first."""
        accuracy, images = self.per_class_accuracy(), self.confusion.sum(axis=1)
        order = [int(index) for index in np.argsort(accuracy, kind="stable") if images[index]]
        return [(index, float(accuracy[index]), int(images[index])) for index in order[:count]]

    def expected_calibration_error(self):
        """Return the mean gap between confidence and accuracy over the bins, weighted by their images, 0-1."""
        images, correct, confidence = self.calibration
        gaps = np.abs(correct - confidence / LOSS_UNITS)
        return float(gaps.sum() / images.sum()) if images.sum() else float("nan")


def _logits(values):
    if isinstance(values, paddle.Tensor):
        values = values.astype("float32").numpy()  # bfloat16 has no NumPy type of its own
    return np.asarray(values)


def _labels(values):
    values = values.numpy() if isinstance(values, paddle.Tensor) else np.asarray(values)
    return values.argmax(axis=1) if values.ndim == 2 else values.astype("int64")
