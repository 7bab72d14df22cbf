"""Which operations an image gets: AutoAugment, RandAugment, TrivialAugment, 3-Augment.

Each policy is called with a Pillow image and the sample's generator and returns a Pillow image. Ranges of magnitudes
are those of torchvision: AutoAugment has 10 steps, the others 31.
"""

from PIL import ImageFilter, ImageOps

from .image_ops import apply_operation

NUM_BINS = 31
_SIGNED = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}
_WITHOUT_MAGNITUDE = {"Identity", "AutoContrast", "Equalize", "Invert"}
_COLOUR = ("Brightness", "Color", "Contrast", "Sharpness")
# order of torchvision's tables, so that an index means the same operation
_NAMES = (
    ("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast")
    + ("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize")
)  # fmt: skip


def magnitude_of(name, step, num_bins, image_size, wide=False):
    """Return the unsigned magnitude of an operation at ``step`` of ``num_bins``.

    Args:
        image_size: (width, height) of the image; translations are shares of it, except in the wide space.
        wide: TrivialAugment's wider ranges.
    """
    if name in _WITHOUT_MAGNITUDE:
        return 0.0
    width, height = image_size
    share = step / (num_bins - 1)
    if name == "Posterize":
        return 8 - round(step / ((num_bins - 1) / (6 if wide else 4)))
    if name == "Solarize":
        return 255.0 - 255.0 * step / (num_bins - 1)  # whole where it should be: pixels of that value are inverted
    if name == "Rotate":
        return share * (135.0 if wide else 30.0)
    if name in _COLOUR:
        return share * (0.99 if wide else 0.9)
    if name.startswith("Shear"):
        return share * (0.99 if wide else 0.3)
    if wide:
        return share * 32.0
    return share * 150 / 331 * (width if name == "TranslateX" else height)


def _signed(name, magnitude, rng):
    return -magnitude if name in _SIGNED and rng.random() < 0.5 else magnitude


class RandAugment:
    """``layers`` operations drawn evenly, all at the same magnitude 0-30 (Cubuk et al., 2019).

    ``prob`` below 1: each is left out now and then, as in timm and PaddleViT.
    """

    def __init__(self, layers, magnitude, prob=1.0):
        self.layers = layers
        self.magnitude = magnitude
        self.prob = prob

    def __call__(self, image, rng):
        for _ in range(self.layers):
            if self.prob < 1 and rng.random() >= self.prob:
                continue
            name = _NAMES[rng.integers(len(_NAMES))]
            magnitude = magnitude_of(name, self.magnitude, NUM_BINS, image.size)
            image = apply_operation(image, name, _signed(name, magnitude, rng))
        return image


class TrivialAugment:
    """One operation drawn evenly, its magnitude too, from wide ranges (Müller and Hutter, 2021)."""

    def __call__(self, image, rng):
        name = _NAMES[rng.integers(len(_NAMES))]
        magnitude = magnitude_of(name, int(rng.integers(NUM_BINS)), NUM_BINS, image.size, wide=True)
        return apply_operation(image, name, _signed(name, magnitude, rng))


class AutoAugment:
    """One of 25 learned pairs of operations, each with its probability (Cubuk et al., 2018, tables 7 and 9)."""

    def __init__(self, policy):
        self.pairs = AUTO_AUGMENT_POLICIES[policy]

    def __call__(self, image, rng):
        for name, probability, step in self.pairs[rng.integers(len(self.pairs))]:
            if rng.random() <= probability:
                magnitude = magnitude_of(name, step, 10, image.size)
                image = apply_operation(image, name, _signed(name, magnitude, rng))
        return image


class ThreeAugment:
    """Grey, solarized or blurred, one of them each time (DeiT III, 2022); goes with colour jitter 0.3."""

    def __call__(self, image, rng):
        choice = rng.integers(3)
        if choice == 0:
            return ImageOps.grayscale(image).convert(image.mode)
        if choice == 1:
            return ImageOps.solarize(image, 128)
        return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))


def _pairs(text):
    """Parse "Name probability step, Name probability step" lines."""
    pairs = []
    for line in text.strip().splitlines():
        words = [part.split() for part in line.split(",")]
        pairs.append(tuple((name, float(probability), int(step)) for name, probability, step in words))
    return tuple(pairs)


# An operation without a magnitude has step 0 here.
AUTO_AUGMENT_POLICIES = {
    "imagenet": _pairs("""
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6 0
        Equalize 0.8 0, Equalize 0.6 0
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4 0, Solarize 0.2 4
        Equalize 0.4 0, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6 0
        Posterize 0.8 5, Equalize 1.0 0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6 0, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6 0
        Equalize 0.0 0, Equalize 0.8 0
        Invert 0.6 0, Equalize 1.0 0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6 0
        ShearX 0.6 5, Equalize 1.0 0
        Color 0.4 0, Equalize 0.6 0
        Equalize 0.4 0, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6 0
        Invert 0.6 0, Equalize 1.0 0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8 0, Equalize 0.6 0
    """),
    "cifar10": _pairs("""
        Invert 0.1 0, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5 0, Equalize 0.9 0
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6 0, Equalize 0.5 0
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3 0, AutoContrast 0.4 0
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0 0
        Equalize 0.2 0, AutoContrast 0.6 0
        Equalize 0.2 0, Equalize 0.6 0
        Color 0.9 9, Equalize 0.6 0
        AutoContrast 0.8 0, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9 0
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9 0, Solarize 0.8 3
        Equalize 0.8 0, Invert 0.1 0
        TranslateY 0.7 9, AutoContrast 0.9 0
    """),
}
