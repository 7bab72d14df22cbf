"""Geometry of training and evaluation images: an encoded image or pixels in, uint8 [size, size, channels] out.

Two libraries, because published weights were measured with one or the other: ``pil`` follows torchvision bit for bit
(antialiased), ``cv2`` PaddleClas (no antialiasing, faster), ``paddleclas_pil`` what PaddleClas calls `backend: pil`:
Pillow's pixels in OpenCV's steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from .decode import REDUCTIONS, check_pixels, decode, jpeg_size
from .image_ops import to_image, to_pixels

CV2_INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "lanczos": cv2.INTER_LANCZOS4,
}
PIL_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resize(pixels, height, width, interpolation="bilinear", library="cv2"):
    """Return uint8 [height, width, channels] scaled from uint8 [any, any, channels]."""
    if pixels.shape[:2] == (height, width):
        return pixels
    check_pixels(height, width)  # a line of pixels, scaled by its short side, would fill the memory
    if library == "cv2":
        scaled = cv2.resize(pixels, (width, height), interpolation=CV2_INTERPOLATIONS[interpolation])
        return scaled if scaled.ndim == 3 else scaled[:, :, None]
    grey = pixels.shape[2] == 1
    image = Image.fromarray(pixels[:, :, 0] if grey else np.ascontiguousarray(pixels))
    scaled = np.asarray(image.resize((width, height), PIL_INTERPOLATIONS[interpolation]))
    return scaled[:, :, None] if grey else scaled


def flip(pixels):
    """Return uint8 [height, width, channels] mirrored left to right, in memory of its own."""
    return cv2.flip(pixels, 1).reshape(pixels.shape)  # OpenCV drops a single channel


def random_crop_box(height, width, scale, ratio, rng):
    """Return (top, left, height, width) of an Inception crop ("Going Deeper with Convolutions", section 6).

    Its area is a share of the image drawn from ``scale``, its aspect ratio is log-uniform in ``ratio``. After ten
    misses the largest centre crop with an allowed aspect ratio is taken, as in torchvision.
    """
    area = height * width
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target = area * rng.uniform(scale[0], scale[1])
        aspect = math.exp(rng.uniform(log_low, log_high))
        crop_width = round(math.sqrt(target * aspect))
        crop_height = round(math.sqrt(target / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(rng.integers(0, height - crop_height + 1))
            left = int(rng.integers(0, width - crop_width + 1))
            return top, left, crop_height, crop_width
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        crop_width = max(1, round(height * ratio[1]))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def center_crop(pixels, size, library="cv2"):
    """Return the central uint8 [size, size, channels]; a smaller image is first padded with black."""
    height, width = pixels.shape[:2]
    if height < size or width < size:
        top, left = max(0, size - height) // 2, max(0, size - width) // 2
        bottom, right = max(0, size - height) - top, max(0, size - width) - left
        pixels = np.pad(pixels, ((top, bottom), (left, right), (0, 0)))
        height, width = pixels.shape[:2]
    if library == "pil":  # torchvision rounds halves to even, PaddleClas cuts them off
        top, left = round((height - size) / 2), round((width - size) / 2)
    else:
        top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]


@dataclass(eq=False)
class TrainTransform:
    """Random crop, flip, augmentation of one image; everything random comes from the generator of that sample.

    Args:
        upright: turn photographs by their EXIF orientation first; see :func:`.decode.decode`.
        image_steps: called in turn with (Pillow image, generator), each returns a Pillow image: policy, colour jitter.
        pixel_steps: likewise for uint8 [H, W, C], last of all: random erasing.
    """

    image_size: int
    channels: int = 3
    crop: str = "random_resized"
    crop_scale: Sequence = (0.08, 1.0)
    crop_ratio: Sequence = (3 / 4, 4 / 3)
    crop_padding: int = 4
    hflip: float = 0.5
    interpolation: str = "bilinear"
    library: str = "cv2"
    scaled_decode: bool = True
    upright: bool = False
    image_steps: Sequence = ()
    pixel_steps: Sequence = ()

    def __post_init__(self):
        # the size in a JPEG's header, by which the scale is chosen, is that of the photograph as it lies
        self.scaled_decode = self.scaled_decode and self.library == "cv2" and not self.upright

    def __call__(self, content, rng):
        """Return uint8 [image_size, image_size, channels] for encoded bytes or uint8 pixels."""
        pixels = self._crop(content, rng)
        if self.hflip and rng.random() < self.hflip:
            pixels = flip(pixels)
        if self.image_steps:
            image = to_image(pixels)
            for step in self.image_steps:
                image = step(image, rng)
            pixels = to_pixels(image)
        for step in self.pixel_steps:
            pixels = step(pixels, rng)
        return pixels

    def _crop(self, content, rng):
        if self.crop == "random_resized":
            return self._resize(self._random_resized_crop(content, rng))
        size = self.image_size
        pixels = decode(content, self.library, self.channels, upright=self.upright)
        if self.crop == "simple":  # DeiT III: short side to the size, 4 pixels of mirrored border, a window of the size
            height, width = short_side(*pixels.shape[:2], size, self.library)
            pixels = resize(pixels, height, width, self.interpolation, self.library)
            return self._window(np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="reflect"), rng)
        if self.crop == "pad":  # the CIFAR recipe of He et al. (2015): pad, then cut the size out at a random place
            pad = self.crop_padding
            pixels = np.pad(self._resize(pixels), ((pad, pad), (pad, pad), (0, 0)))
            return self._window(pixels, rng)
        return self._resize(pixels)

    def _window(self, pixels, rng):
        size = self.image_size
        top = int(rng.integers(pixels.shape[0] - size + 1))
        left = int(rng.integers(pixels.shape[1] - size + 1))
        return pixels[top : top + size, left : left + size]

    def _random_resized_crop(self, content, rng):
        shape = jpeg_size(content) if self.scaled_decode else None
        if shape is None:
            pixels = decode(content, self.library, self.channels, upright=self.upright)
            top, left, height, width = random_crop_box(*pixels.shape[:2], self.crop_scale, self.crop_ratio, rng)
            return pixels[top : top + height, left : left + width]
        box = random_crop_box(*shape, self.crop_scale, self.crop_ratio, rng)
        fitting = [factor for factor in REDUCTIONS if min(box[2:]) // factor >= self.image_size]
        factor = fitting[0] if fitting else 1
        pixels = decode(content, self.library, self.channels, factor)
        if pixels.shape[:2] == shape:  # Pillow took over: the bytes are unusual, so all pixels were decoded
            factor = 1
        top, left, height, width = box
        rows = slice(round(top / factor), round((top + height) / factor))
        columns = slice(round(left / factor), round((left + width) / factor))
        return pixels[rows, columns]

    def _resize(self, pixels):
        return resize(pixels, self.image_size, self.image_size, self.interpolation, self.library)


@dataclass(eq=False)
class EvalTransform:
    """Short side to floor(size / crop_pct), then the central square; nothing random.

    Args:
        keep_aspect: False squeezes the image to a square of that size first, as ColossalAI's DALI pipeline does.
        upright: turn photographs by their EXIF orientation first; see :func:`.decode.decode`.
    """

    image_size: int
    channels: int = 3
    crop_pct: float = 0.875
    interpolation: str = "bilinear"
    library: str = "cv2"
    keep_aspect: bool = True
    upright: bool = False

    def __post_init__(self):
        self.resize_size = math.floor(self.image_size / self.crop_pct)

    def __call__(self, content, rng=None):
        """Return uint8 [image_size, image_size, channels] for encoded bytes or uint8 pixels."""
        pixels = decode(content, self.library, self.channels, upright=self.upright)
        height, width = self.scaled_size(*pixels.shape[:2])
        scaled = resize(pixels, height, width, self.interpolation, self.library)
        return center_crop(scaled, self.image_size, self.library)

    def box(self, height, width):
        """Return (top, left, bottom, right), in an image's own pixels, of the part that is left of it."""
        edges = []
        for side, scaled in zip((height, width), self.scaled_size(height, width), strict=True):
            first = max(0.0, (scaled - self.image_size) / 2) * side / scaled
            edges.append((first, side - first))
        (top, bottom), (left, right) = edges
        return top, left, bottom, right

    def scaled_size(self, height, width):
        """Return the (height, width) to which an image is scaled before its centre is cut out."""
        if not self.keep_aspect:
            return self.resize_size, self.resize_size
        return short_side(height, width, self.resize_size, self.library)


def short_side(height, width, size, library):
    """Return (height, width) scaled so that the shorter one is ``size``."""
    if library == "pil":  # torchvision truncates the long side, PaddleClas rounds it
        long = int(size * max(height, width) / min(height, width))
    else:
        long = round(max(height, width) * (size / min(height, width)))
    return (size, long) if height <= width else (long, size)
