"""Colour jitter and random erasing: what may follow crop, flip and policy."""

import numpy as np

from .image_ops import apply_operation, shift_hue


class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order, as torchvision does it.

    Each strength s draws a factor from [max(0, 1 - s), 1 + s]; hue turns by up to ``hue`` <= 0.5 of the circle.
    """

    def __init__(self, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0):
        self.strengths = {"Brightness": brightness, "Contrast": contrast, "Color": saturation}
        self.hue = hue

    def __call__(self, image, rng):
        names = [*self.strengths, "Hue"]
        for position in rng.permutation(len(names)):
            name = names[position]
            if name == "Hue":
                if self.hue:
                    image = shift_hue(image, rng.uniform(-self.hue, self.hue))
            elif strength := self.strengths[name]:
                factor = rng.uniform(max(0.0, 1 - strength), 1 + strength)
                image = apply_operation(image, name, factor - 1)
        return image


class RandomErasing:
    """A random box filled with noise, or with the mean colour (Zhong et al., 2017); works on uint8 pixels.

    Args:
        mode: ``pixel`` fills with noise of the images' own mean and standard deviation, ``colour`` with one such draw
            (timm's ``rand``), ``random`` with even noise 0-255 (the paper's RE-R), ``mean`` with the mean (RE-M),
            which is 0 after normalisation (timm's ``const``). Noise ends at black and white, timm's does not.
        mean, std: of the channels, images scaled to 0-1.
    """

    def __init__(self, probability, mode, mean, std, area=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3)):
        self.probability = probability
        self.mode = mode
        self.mean = np.asarray(mean) * 255
        self.std = np.asarray(std) * 255
        self.area = area
        self.ratio = ratio

    def __call__(self, pixels, rng):
        """Return uint8 [H, W, C], a copy where something was erased."""
        if rng.random() >= self.probability:
            return pixels
        box = self._box(*pixels.shape[:2], rng)
        if box is None:
            return pixels
        top, left, height, width = box
        shape = (height, width, pixels.shape[2])
        if self.mode == "random":
            fill = rng.integers(0, 256, shape)
        elif self.mode == "pixel":
            fill = self.mean + self.std * rng.standard_normal(shape)
        elif self.mode == "colour":
            fill = self.mean + self.std * rng.standard_normal(shape[2])
        else:
            fill = self.mean
        pixels = np.array(pixels)
        pixels[top : top + height, left : left + width] = np.clip(np.round(fill), 0, 255)
        return pixels

    def _box(self, image_height, image_width, rng):
        for _ in range(10):
            area = image_height * image_width * rng.uniform(*self.area)
            ratio = np.exp(rng.uniform(*np.log(self.ratio)))
            height, width = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
            if 0 < height < image_height and 0 < width < image_width:
                top = int(rng.integers(image_height - height + 1))
                left = int(rng.integers(image_width - width + 1))
                return top, left, height, width
        return None
