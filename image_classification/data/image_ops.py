"""The operations of AutoAugment and its successors on Pillow images, as torchvision defines them.

A magnitude means degrees for Rotate, pixels for Translate, the factor minus one for colour operations, bits for
Posterize, a grey value for Solarize. Geometry takes the nearest pixel and fills with black.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

_NEAREST = Image.Resampling.NEAREST
_AFFINE = Image.Transform.AFFINE


def _affine(image, *matrix):
    return image.transform(image.size, _AFFINE, matrix, _NEAREST)


OPERATIONS = {
    "Identity": lambda image, magnitude: image,
    # the matrix says where an output pixel comes from: (a x + b y + c, d x + e y + f)
    "ShearX": lambda image, magnitude: _affine(image, 1, magnitude, 0, 0, 1, 0),
    "ShearY": lambda image, magnitude: _affine(image, 1, 0, 0, magnitude, 1, 0),
    "TranslateX": lambda image, magnitude: _affine(image, 1, 0, -int(magnitude), 0, 1, 0),
    "TranslateY": lambda image, magnitude: _affine(image, 1, 0, 0, 0, 1, -int(magnitude)),
    "Rotate": lambda image, magnitude: image.rotate(magnitude, _NEAREST),
    "Brightness": lambda image, magnitude: ImageEnhance.Brightness(image).enhance(1 + magnitude),
    "Color": lambda image, magnitude: ImageEnhance.Color(image).enhance(1 + magnitude),
    "Contrast": lambda image, magnitude: ImageEnhance.Contrast(image).enhance(1 + magnitude),
    "Sharpness": lambda image, magnitude: ImageEnhance.Sharpness(image).enhance(1 + magnitude),
    "Posterize": lambda image, magnitude: ImageOps.posterize(image, int(magnitude)),
    "Solarize": lambda image, magnitude: ImageOps.solarize(image, magnitude),
    "AutoContrast": lambda image, magnitude: ImageOps.autocontrast(image),
    "Equalize": lambda image, magnitude: ImageOps.equalize(image),
    "Invert": lambda image, magnitude: ImageOps.invert(image),
}


def apply_operation(image, name, magnitude):
    """Return the Pillow image (mode RGB or L) after one operation."""
    return OPERATIONS[name](image, magnitude)


def shift_hue(image, share):
    """Return an RGB image whose hue is turned by ``share`` of the circle, -0.5 to 0.5; a grey image as it is."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(int(share * 255) % 256)  # wraps around
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def to_image(pixels):
    """Return the Pillow image of uint8 [height, width, 1 or 3]."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))


def to_pixels(image):
    """Return uint8 [height, width, channels] of a Pillow image."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
