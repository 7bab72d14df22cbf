"""A photograph with what a model says of it: the part that it saw, where it looked, and the classes in words."""

import bisect
import functools

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .fonts import drawable, parts_of

SMALLEST, LARGEST = 224, 1024  # pixels; sides of the photograph in the picture
LONGEST = 4 * LARGEST  # of a strip, which SMALLEST alone would make longer than a file or the memory holds
FONT_SIZE, MARGIN = 15, 5


def annotate(photo, box, heat, lines):
    """Return the picture, uint8 RGB: the photograph with the crop outlined, the heat map beside it, the lines below.

    Args:
        photo: uint8 [height, width, 1 or 3], the whole photograph.
        box: (top, left, bottom, right) of the crop that the model saw, in the photograph's pixels.
        heat: float [h, w] in 0-1 over that crop; None leaves it out.
        lines: texts; one that is too long is cut at its end.
    """
    photo = np.repeat(photo, 3, axis=2) if photo.shape[2] == 1 else photo
    height, width = photo.shape[:2]
    factor = max(SMALLEST / min(height, width), min(1.0, LARGEST / max(height, width)))
    factor = min(factor, LONGEST / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    photo = cv2.resize(photo, size, interpolation=cv2.INTER_NEAREST if factor > 1 else cv2.INTER_AREA)
    top, left, bottom, right = (round(edge * factor) for edge in box)
    bottom, right = max(bottom, top + 1), max(right, left + 1)
    pictures = [photo] if heat is None else [photo, _with_heat(photo, (top, left, bottom, right), heat)]
    for picture in pictures:
        if (top, left, bottom, right) != (0, 0, *picture.shape[:2]):
            cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), (0, 0, 0), 3)
            cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), (255, 255, 255), 1)
    whole = np.hstack(pictures)
    return np.vstack([whole, caption(lines, whole.shape[1])])


def _with_heat(photo, box, heat):
    top, left, bottom, right = box
    size = right - left, bottom - top
    smooth = cv2.resize(heat.astype(np.float32), size, interpolation=cv2.INTER_CUBIC).clip(0, 1)
    colours = cv2.applyColorMap((smooth * 255).astype(np.uint8), cv2.COLORMAP_JET)[:, :, ::-1]
    picture = photo.copy()
    part = np.ascontiguousarray(picture[top:bottom, left:right])
    picture[top:bottom, left:right] = cv2.addWeighted(part, 0.5, np.ascontiguousarray(colours), 0.5, 0)
    return picture


@functools.cache
def _font(path, size):
    return ImageFont.truetype(path, size)


def caption(lines, width, size=FONT_SIZE):
    """Return the lines in white on black, uint8 [height, width, 3]; one that is too long is cut at its end."""
    step = size + MARGIN
    image = Image.new("RGB", (width, step * len(lines) + 2 * MARGIN))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(drawable(lines)):
        place = MARGIN
        for path, part in parts_of(_cut(line, width - 2 * MARGIN, size)):
            base = MARGIN + number * step + size
            draw.text((place, base), part, font=_font(path, size), anchor="ls")
            place += _font(path, size).getlength(part)
    return np.asarray(image)


def _cut(line, width, size):
    if _length(line, size) <= width:
        return line
    fit = bisect.bisect_right(range(len(line)), width, key=lambda kept: _length(line[:kept] + "…", size))
    return line[: max(fit - 1, 0)] + "…"


def _length(line, size):
    return sum(_font(path, size).getlength(part) for path, part in parts_of(line))
