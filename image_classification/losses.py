"""Training loss: cross entropy for hard and soft targets, with label smoothing, class weights and the focal factor."""

import numpy as np
import paddle
from paddle.nn import functional

from .config.schema import BALANCED
from .runtime import UserError, some_of

# Keeps the derivative of (1 - p) ** gamma finite for gamma < 1 where a prediction is certain; not 0 in float16 either.
_SMALLEST_DOUBT = 1e-6


def build_criterion(config, dataset=None):
    """Return the :class:`Criterion` of ``TRAIN.SMOOTHING``, ``TRAIN.CLASS_WEIGHTS`` and ``TRAIN.FOCAL_GAMMA``.

    Args:
        dataset: the training images, whose labels are counted for balanced weights; None in an evaluation.

    Raises:
        UserError: there is not one weight per class, or nothing to count.
    """
    train = config.TRAIN
    weights = train.CLASS_WEIGHTS
    if weights == BALANCED:
        weights = None if dataset is None else _balanced_weights(config, dataset)
    if weights is not None and len(weights) != config.MODEL.NUM_CLASSES:
        raise UserError(f"TRAIN.CLASS_WEIGHTS: {len(weights)} weights for {config.MODEL.NUM_CLASSES} classes")
    return Criterion(train.SMOOTHING, weights, train.FOCAL_GAMMA)


def _balanced_weights(config, dataset):
    counts = np.bincount(dataset.labels, minlength=config.MODEL.NUM_CLASSES)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise UserError(f"TRAIN.CLASS_WEIGHTS: {BALANCED}: without a training image: class {some_of(empty, 4)}")
    return balanced_class_weights(counts)


def balanced_class_weights(counts):
    """Return one weight a class, N / (classes * images of the class): on average over the N images it is 1."""
    return (counts.sum() / (len(counts) * counts)).tolist()


class Criterion:
    """Mean loss of a batch; the dtype is that of the logits or what the precision's context makes of them.

    Every part is linear in the targets, so mixed images need no loss of their own: ``lam * a + (1 - lam) * b`` as soft
    targets gives the same as mixing two losses. Soft targets must not be smoothed already.

    Args:
        smoothing: share s of the target that is spread evenly over all classes (Szegedy et al. 2016).
        class_weights: one factor per class; the mean is then weighted too, as in PyTorch for hard labels.
        focal_gamma: exponent of the factor (1 - p) ** gamma of the focal loss (Lin et al. 2017); 0 switches it off.
    """

    def __init__(self, smoothing=0.0, class_weights=None, focal_gamma=0.0):
        self._smoothing = smoothing
        self._class_weights = None if class_weights is None else paddle.to_tensor(class_weights, dtype="float32")
        self._focal_gamma = focal_gamma

    def __call__(self, logits, labels):
        """Return the scalar loss of ``logits`` [B, C] for ``labels``: int64 [B], or targets that sum to 1 [B, C]."""
        if labels.ndim == 1 and not self._smoothing and not self._focal_gamma and self._class_weights is None:
            return functional.cross_entropy(logits, labels)
        log_probs = functional.log_softmax(logits, axis=-1)  # [B, C]
        targets = functional.one_hot(labels, logits.shape[-1]) if labels.ndim == 1 else labels
        targets = targets.astype(log_probs.dtype)
        factors = targets * (1 - self._smoothing) + self._smoothing / logits.shape[-1]
        if self._focal_gamma:
            factors = factors * (1 - log_probs.exp()).clip(min=_SMALLEST_DOUBT) ** self._focal_gamma
        if self._class_weights is None:
            return -(factors * log_probs).sum(axis=-1).mean()
        weights = self._class_weights.astype(log_probs.dtype)
        return -(factors * weights * log_probs).sum() / (targets * weights).sum()
