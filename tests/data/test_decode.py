"""Pictures that stand for more than they are: refused by their header, before anything is decoded."""

import contextlib
import io
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from image_classification.data.decode import LARGEST, CorruptImage, decode, jpeg_size
from image_classification.data.transforms import EvalTransform, TrainTransform
from tests.helpers.data_samples import encoded, photo


def png(height, width, rows=1):
    """Return a PNG whose header says height x width, with that many rows of zeros packed into it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(bytes(rows * (1 + 3 * width)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def jpeg(height, width):
    """Return a JPEG whose frame header says height x width."""
    content = bytearray(encoded(photo(16, 16)))
    position = content.index(b"\xff\xc0") + 5
    content[position : position + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def pillow(kind, height=10_000, width=9_000, mode="P"):
    """Return an image of one colour in another format."""
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("content", [png(20_000, 20_000), png(1, LARGEST + 1), jpeg(65_000, 65_000), pillow("GIF")])
def test_picture_of_too_many_pixels_is_refused_by_its_header(content, library):
    with pytest.raises(CorruptImage, match=f"at most {LARGEST} are allowed|exceeds limit of {LARGEST} pixels"):
        decode(content, library)


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("length", [1 << 30, (1 << 31) + 17, (1 << 32) - 1])
def test_png_whose_chunk_says_that_it_is_huge_costs_no_time(length, library):
    """OpenCV clears as much memory as the chunk says, seconds of it, before it sees that the file ends."""
    content = bytearray(png(20, 30, rows=20))
    position = content.index(b"IDAT") - 4
    content[position : position + 4] = struct.pack(">I", length)
    start = time.process_time()
    with contextlib.suppress(CorruptImage):  # Pillow reads it where the data are whole all the same
        assert decode(bytes(content), library).shape == (20, 30, 3)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG"])
def test_formats_are_read_as_before(kind, library):
    image = photo(20, 30)
    pixels = decode(encoded(image, kind), library)
    assert pixels.shape == (20, 30, 3)
    if kind in ("PNG", "BMP", "TIFF", "PPM"):
        np.testing.assert_array_equal(pixels, image)


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize(("kind", "frames"), [("PNG", 1), ("GIF", 1), ("GIF", 2)])
def test_transparent_colour_of_a_palette_is_that_colour(kind, library, frames):
    """OpenCV leaves pixels of a GIF's transparent colour as its background is. The first of several is read."""
    image = Image.fromarray(photo(20, 30)).quantize(16)
    file = io.BytesIO()
    others = [Image.fromarray(photo(20, 30, seed=1)).quantize(16)] * (frames - 1)
    image.save(file, kind, transparency=3, save_all=frames > 1, append_images=others, disposal=2)
    pixels = decode(file.getvalue(), library)
    np.testing.assert_array_equal(pixels, np.asarray(Image.open(file).convert("RGB")))
    assert (np.asarray(image) == 3).any()


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_pixels_that_are_nearly_transparent_keep_their_colours(kind, library):
    """OpenCV reads a TIFF through libtiff's RGBA, which multiplies the colours by alpha."""
    image = photo(20, 30)
    translucent = np.dstack([image, np.full((20, 30), 3, np.uint8)])
    np.testing.assert_array_equal(decode(encoded(translucent, kind), library), image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("white", [1, 15, 100, 255, 256, 1023, 65535])
@pytest.mark.parametrize("kind", ["P5", "P6"])
def test_pixels_when_a_header_says_which_number_is_white_are_scaled_by_it(kind, white, library, channels):
    levels = np.array([0, (white + 1) // 2, white])
    samples = np.repeat(levels, 3) if kind == "P6" else levels
    content = f"{kind} 3 1 {white} ".encode() + samples.astype("u1" if white < 256 else ">u2").tobytes()
    pixels = decode(content, library, channels)
    # one level where a product is rounded, and one for the bits that are cut from 16
    np.testing.assert_allclose(pixels[0, :, 0], levels * (255 / white), rtol=0, atol=2)


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize(("dtype", "said"), [(np.float32, "32-bit floats"), (np.int32, "32-bit integers")])
def test_pixels_when_nothing_says_which_number_is_white_are_refused(dtype, said, library):
    """Pillow cuts them to 0..255: floats from 0 to 1 are black then, and counts are white."""
    content = encoded(Image.fromarray(np.full((4, 5), 1000, dtype)), "TIFF")
    with pytest.raises(CorruptImage, match=said):
        decode(content, library)


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize(("height", "width"), [(1, 20_000), (20_000, 1)])
def test_line_of_pixels_is_not_scaled_beyond_the_memory(height, width, library):
    content = encoded(np.zeros((height, width, 3), np.uint8), "PNG")
    with pytest.raises(CorruptImage, match="x .* pixels, at most"):
        EvalTransform(224, library=library)(content)
    cut = TrainTransform(224, library=library)(content, np.random.default_rng(0))
    assert cut.shape == (224, 224, 3)


def test_progressive_jpeg_of_many_scans_is_refused():
    content = encoded(photo(32, 32), progressive=True)
    scan = content[content.rindex(b"\xff\xda") : -2]
    bomb = content[:-2] + scan * 500 + content[-2:]
    with pytest.raises(CorruptImage, match="more than 200 scans"):
        decode(bomb)


def test_marker_without_a_length_leaves_the_decision_to_one_decoder():
    """Two decoders that read on at different places could see different sizes."""
    content = encoded(photo(16, 16))
    hidden = b"\xff\xd0\x00\x0b" + content[content.index(b"\xff\xc0") :][:9]
    assert jpeg_size(content[:2] + hidden + content[2:]) is None
    assert jpeg_size(content) == (16, 16)
