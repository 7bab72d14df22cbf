"""Mixup and CutMix: pairs of images of a batch become one, and so do their labels."""

import numpy as np

# Keeps the generators of batches apart from those of samples and of the epoch's order.
_MIX_STREAM = (2,)


def batch_rng(seed, epoch, batch, rank):
    """Return the generator of one batch of one rank."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([seed, epoch, batch, rank], spawn_key=_MIX_STREAM))
    )


class BatchMix:
    """Mixes a batch by one lambda ~ Beta(alpha, alpha), each image with its partner in a random permutation.

    Mixup (Zhang et al., 2017): lambda x + (1 - lambda) x[permutation]. CutMix (Yun et al., 2019): a box of area
    1 - lambda comes from the partner, and lambda becomes the share that was left. With both, ``switch_probability`` is
    that of CutMix.

    Args:
        cutmix_minmax: two fractions of the image's sides between which those of CutMix's box are drawn, as in timm;
            they replace ``cutmix_alpha``.
    """

    def __init__(
        self,
        num_classes,
        mixup_alpha=0.0,
        cutmix_alpha=0.0,
        probability=1.0,
        switch_probability=0.5,
        cutmix_minmax=None,
    ):
        self.num_classes = num_classes
        self.mixup_alpha = mixup_alpha
        self.cutmix_alpha = 1.0 if cutmix_minmax else cutmix_alpha  # on; the box makes nothing of this lambda
        self.cutmix_minmax = cutmix_minmax
        self.probability = probability
        self.switch_probability = switch_probability

    def __call__(self, images, labels, rng):
        """Return (images float32 [B, C, H, W], targets float32 [B, num_classes] of sum 1); may change ``images``."""
        images, labels_b, lam = self.mix(images, labels, rng)
        targets = np.zeros((len(labels), self.num_classes), np.float32)
        rows = np.arange(len(labels))
        targets[rows, labels] = lam
        targets[rows, labels_b] += np.float32(1 - lam)
        return images, targets

    def mix(self, images, labels, rng):
        """Return (images, labels of the partners int64 [B], lambda): the loss is lambda L(a) + (1 - lambda) L(b)."""
        if rng.random() >= self.probability:
            return images, labels, 1.0
        use_cutmix = self.cutmix_alpha > 0 and (self.mixup_alpha == 0 or rng.random() < self.switch_probability)
        alpha = self.cutmix_alpha if use_cutmix else self.mixup_alpha
        lam = float(rng.beta(alpha, alpha))
        partner = rng.permutation(len(labels))
        if use_cutmix:
            size = images.shape[2:]
            box = minmax_box(*size, self.cutmix_minmax, rng) if self.cutmix_minmax else cutmix_box(*size, lam, rng)
            top, bottom, left, right = box
            images[:, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
            lam = 1 - (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
        else:
            other = images[partner]
            other *= np.float32(1 - lam)
            images *= np.float32(lam)
            images += other
        return images, labels[partner], lam


def cutmix_box(height, width, lam, rng):
    """Return (top, bottom, left, right) of a box of area share 1 - lam with an even centre, cut off at the border."""
    side = np.sqrt(1 - lam)
    box_height, box_width = int(height * side), int(width * side)
    center_y, center_x = int(rng.integers(height)), int(rng.integers(width))
    top, bottom = np.clip([center_y - box_height // 2, center_y + box_height // 2], 0, height).tolist()
    left, right = np.clip([center_x - box_width // 2, center_x + box_width // 2], 0, width).tolist()
    return top, bottom, left, right


def minmax_box(height, width, minmax, rng):
    """Return (top, bottom, left, right) of a box inside the image, each side even between two shares of the image's."""
    box_height, box_width = (
        int(rng.integers(int(minmax[0] * side), int(minmax[1] * side), endpoint=True)) for side in (height, width)
    )
    top = int(rng.integers(height - box_height, endpoint=True))
    left = int(rng.integers(width - box_width, endpoint=True))
    return top, top + box_height, left, left + box_width


def build_batch_transform(config):
    """Return the :class:`BatchMix` of TRAIN.MIXUP_* and TRAIN.CUTMIX_*, None when both are off."""
    train = config.TRAIN
    minmax = train.CUTMIX_MINMAX
    if not (train.MIXUP_ALPHA or train.CUTMIX_ALPHA or minmax):
        return None
    return BatchMix(
        config.MODEL.NUM_CLASSES,
        train.MIXUP_ALPHA,
        train.CUTMIX_ALPHA,
        train.MIXUP_PROB,
        train.MIXUP_SWITCH_PROB,
        minmax,
    )
