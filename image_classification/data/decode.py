"""Encoded image bytes -> uint8 pixels, whatever the file's channels; a file that ends too early raises.

What is damaged inside of a JPEG comes out as the library decodes it, with wrong pixels: the format has no checksum.
"""

import io
import struct
import warnings
import zlib

import cv2
import numpy as np
from PIL import Image, ImageOps

from ..runtime import UserError

# Every worker process decodes its own images: threads inside OpenCV would only fight with them.
cv2.setNumThreads(0)

_CV2_FLAGS = {3: cv2.IMREAD_COLOR_RGB, 1: cv2.IMREAD_GRAYSCALE}
# libjpeg computes an image of 1/2, 1/4 or 1/8 of the size straight from the coefficients. OpenCV's names say grey, but
# these bits stand for the size alone (IMREAD_REDUCED_COLOR_2 adds the bit for BGR, which excludes the one for RGB).
_CV2_REDUCTIONS = {
    1: 0,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
}
_JPEG = b"\xff\xd8"
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xDA)})
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
REDUCTIONS = (8, 4, 2)
# What Pillow raises for files that are not what it expects.
_PIL_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
_PIL_MODES = {3: "RGB", 1: "L"}
_PNG = b"\x89PNG\r\n\x1a\n"
# PNM says which number is white, by which OpenCV does not scale; a TIFF's colours it multiplies by alpha, and a GIF's
# transparent one it does not read.
_LEFT_TO_PILLOW = (b"P2", b"P3", b"P5", b"P6", b"II", b"MM", b"GI")
LARGEST = 89_478_485  # pixels, those of Pillow's MAX_IMAGE_PIXELS: 256 MB of RGB
MOST_SCANS = 200  # of a progressive JPEG, each of which goes over all pixels; encoders write ten


class CorruptImage(Exception):
    """An image's bytes cannot be decoded; the text says why, the caller knows which file it is."""


def decode(content, library="cv2", channels=3, reduction=1, upright=False):
    """Return the uint8 pixels [height, width, channels] of an encoded image (bytes or memoryview) or of an array.

    Grey, palette, RGBA and CMYK images come out with the asked number of channels (1 or 3); alpha is dropped.

    Args:
        library: ``pil``; else OpenCV.
        reduction: 2, 4 or 8 divides the sides of a JPEG (rounded up) while decoding; for the library ``cv2``.
        upright: turn a photograph by its EXIF orientation, as `cv2.imdecode` and so PaddleClas do; Pillow, torchvision
            and timm do not.

    Raises:
        CorruptImage: the bytes are no image, end too early, or stand for more pixels than a photograph has.
        UserError: another number of channels, which only an array that has as many can have.
    """
    if isinstance(content, np.ndarray):
        return set_channels(content, channels)
    check_channels(channels)
    image_size(content)
    if library != "pil":
        pixels = _decode_cv2(content, channels, reduction, upright)
        if pixels is not None:
            return set_channels(pixels, channels)
    return set_channels(_decode_pil(content, channels, upright), channels)


def check_channels(channels):
    """Raise UserError where pictures cannot have that many colour channels."""
    if channels not in _PIL_MODES:
        raise UserError(f"DATA.IMAGE_CHANNELS: expected 1 (grey) or 3 (RGB), as pictures are decoded, found {channels}")


def set_channels(pixels, channels):
    """Return [height, width, channels] for a uint8 array [height, width] or [height, width, 1, 3 or 4]."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    present = pixels.shape[2]
    if present == channels:
        return pixels
    check_channels(channels)
    if channels == 3:
        return np.repeat(pixels[:, :, :1], 3, axis=2) if present < 3 else pixels[:, :, :3]
    if present < 3:
        return pixels[:, :, :1]
    return cv2.cvtColor(np.ascontiguousarray(pixels[:, :, :3]), cv2.COLOR_RGB2GRAY)[:, :, None]


def jpeg_size(content):
    """Return (height, width) from the header of a JPEG, None for any other bytes."""
    if isinstance(content, np.ndarray) or content[:2] != _JPEG:
        return None
    position = 2
    while position + 9 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker in _WITHOUT_LENGTH:  # decoders differ in where they read on
            return None
        elif marker in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", content, position + 5)
            return (height, width) if height and width else None
        else:
            position += 2 + struct.unpack_from(">H", content, position + 2)[0]
    return None


def check_pixels(height, width):
    """Raise CorruptImage where an image of that size would take memory without bound."""
    if height * width > LARGEST:
        raise CorruptImage(f"{height} x {width} pixels, at most {LARGEST} are allowed")


def image_size(content):
    """Return (height, width) from the header of an encoded image: 5 MB of PNG can stand for 400 million pixels.

    Raises:
        CorruptImage: the bytes are no image, or it has more pixels than a photograph.
    """
    size = jpeg_size(content)
    if size is None and content[:8] == _PNG and len(content) >= 24:
        size = struct.unpack_from(">II", content, 16)[::-1]
    if size is None:
        with _open_pil(content) as image:
            size = image.size[::-1]
    elif content[:2] == _JPEG and bytes(content).count(b"\xff\xda") > MOST_SCANS:
        raise CorruptImage(f"more than {MOST_SCANS} scans")
    check_pixels(*size)
    return size


def _decode_cv2(content, channels, reduction, upright):
    # libjpeg fills what a cut file lacks with grey and only warns: such files go to Pillow, which refuses them.
    if content[:2] == _JPEG and not (jpeg_size(content) and _jpeg_is_whole(content)):
        return None
    if content[:8] == _PNG and not _png_is_whole(content):
        return None
    if bytes(content[:2]) in _LEFT_TO_PILLOW:
        return None
    try:
        flags = _CV2_FLAGS[channels] | _CV2_REDUCTIONS[reduction]
        flags |= 0 if upright else cv2.IMREAD_IGNORE_ORIENTATION
        return cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error:
        return None


def _png_is_whole(content):
    # OpenCV reserves and clears what a chunk says its length is, up to 4 GB, before it sees that the file ends.
    position = len(_PNG)
    while position + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, position)
        position += 12 + length
        if kind == b"IEND":
            return position <= len(content)
    return False


def _jpeg_is_whole(content):
    # FF D9 ends an image and cannot occur inside its entropy-coded data; some files carry padding after it.
    if content[-2:] == b"\xff\xd9":
        return True
    content = bytes(content)
    return content.rfind(b"\xff\xd9") > content.rfind(b"\xff\xda")


def _decode_pil(content, channels, upright):
    with _open_pil(content) as file:
        check_pixels(*file.size)
        return pillow_pixels(file, channels, upright)


def pillow_pixels(file, channels, upright):
    """Return the uint8 pixels [height, width, channels], or without the last axis, of a Pillow image as it was opened.

    Raises:
        CorruptImage: its file ends too early, or nothing says which number is white.
    """
    try:
        image = ImageOps.exif_transpose(file) if upright else file
        if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 255 instead of scaling them
            return (np.asarray(image) >> 8).astype(np.uint8)
        if image.mode == "I" and file.format == "PPM":  # scaled to 16 bits by Pillow, and not further either
            return (np.asarray(image) >> 8).astype(np.uint8)
        if image.mode in ("I", "F"):
            raise CorruptImage(f"32-bit {'integers' if image.mode == 'I' else 'floats'}: which one is white?")
        return np.array(image.convert(_PIL_MODES[channels]))
    except _PIL_ERRORS as error:
        raise _corrupt(error) from None


def _open_pil(content):
    """Return a Pillow image of which only the header has been read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(io.BytesIO(content))
        except _PIL_ERRORS as error:
            raise _corrupt(error) from None


def _corrupt(error):
    return CorruptImage(str(error).replace("<_io.BytesIO object at ", "").split(" 0x")[0])
