"""Decoding, crops and resizing against Pillow and NumPy."""

import io
import math

import cv2
import numpy as np
import pytest
from PIL import Image

from image_classification.config import build_config
from image_classification.data import build_eval_loader
from image_classification.data.decode import CorruptImage, decode, jpeg_size
from image_classification.data.samples import to_planes
from image_classification.data.transforms import (
    CV2_INTERPOLATIONS,
    PIL_INTERPOLATIONS,
    EvalTransform,
    TrainTransform,
    center_crop,
    flip,
    random_crop_box,
)
from tests.helpers.data_samples import encoded, photo


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_decode_jpeg_equals_pillow_bit_for_bit(library, subsampling):
    for progressive in (False, True):
        content = encoded(photo(61, 90), quality=90, subsampling=subsampling, progressive=progressive)
        np.testing.assert_array_equal(decode(content, library), np.asarray(Image.open(io.BytesIO(content))))


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize("channels", [1, 3])
def test_reduced_decoding_gives_the_pixels_of_libjpeg(reduction, channels):
    content = encoded(photo(61, 90), quality=90)
    draft = Image.open(io.BytesIO(content))
    size = (-(-90 // reduction), -(-61 // reduction))
    draft.draft("L" if channels == 1 else "RGB", (90 // reduction, 61 // reduction))
    assert draft.size == size
    expected = np.asarray(draft).reshape(size[1], size[0], channels)
    np.testing.assert_array_equal(decode(content, "cv2", channels, reduction), expected)


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "LA", "1", "CMYK", "I;16"])
def test_decode_of_any_colour_mode_gives_rgb(library, mode):
    rgb = Image.fromarray(photo(32, 48))
    if mode == "CMYK":
        content, expected = encoded(rgb.convert("CMYK"), quality=95), np.asarray(rgb)
    elif mode == "I;16":
        grey = np.asarray(rgb.convert("L"))
        content = encoded(Image.fromarray(grey.astype(np.uint16) * 257), "PNG")
        expected = np.repeat(grey[:, :, None], 3, 2)
    else:
        content = encoded(rgb.convert(mode), "PNG")
        expected = np.asarray(rgb.convert(mode).convert("RGB"))
    pixels = decode(content, library)
    assert pixels.shape == (32, 48, 3) and pixels.dtype == np.uint8
    # a CMYK JPEG is lossy and the two libraries round its conversion differently; everything else is exact
    tolerance = 25 if mode == "CMYK" else 0
    assert np.abs(pixels.astype(int) - expected).max() <= tolerance


@pytest.mark.parametrize("library", ["cv2", "pil"])
def test_decode_to_grey_gives_luminance(library):
    rgb = photo(32, 48)
    for content in (encoded(rgb, "PNG"), rgb, np.dstack([rgb, rgb[:, :, :1]])):
        pixels = decode(content, library, channels=1)
        assert pixels.shape == (32, 48, 1)
        exact = rgb @ np.array([0.299, 0.587, 0.114])  # ITU-R 601; libraries cut it to fixed point
        assert np.abs(pixels[:, :, 0] - exact).max() <= 1.1


@pytest.mark.parametrize("library", ["cv2", "pil"])
def test_decode_turns_by_the_exif_orientation_only_where_asked(library):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(photo(20, 40), exif=exif)
    lying = decode(content, library)
    assert lying.shape == (20, 40, 3)
    np.testing.assert_array_equal(decode(content, library, upright=True), np.rot90(lying, -1))


@pytest.mark.parametrize("library", ["cv2", "pil"])
@pytest.mark.parametrize("content", [b"", b"text", encoded(photo(40, 40))[:-100], encoded(photo(40, 40), "PNG")[:-60]])
def test_broken_bytes_raise(library, content):
    with pytest.raises(CorruptImage):
        decode(content, library)


def test_jpeg_with_bytes_after_its_end_is_whole():
    content = encoded(photo(40, 40))
    np.testing.assert_array_equal(decode(content + b"\0" * 7), decode(content))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"\xff\xc0" * 40}])
def test_jpeg_size_reads_the_header(options):
    assert jpeg_size(encoded(photo(33, 77), **options)) == (33, 77)
    assert jpeg_size(encoded(photo(33, 77), "PNG")) is None
    assert jpeg_size(b"\xff\xd8\xff") is None


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("height", "width", "size"), [(75, 100, 32), (101, 67, 33), (40, 40, 32), (29, 64, 32)])
def test_eval_transform_pil_equals_the_torchvision_pipeline(interpolation, height, width, size):
    image = Image.fromarray(photo(height, width))
    short = math.floor(size / 0.875)
    # torchvision.transforms.Resize(int) and CenterCrop, spelt out
    if width <= height:
        resized = image.resize((short, int(short * height / width)), PIL_INTERPOLATIONS[interpolation])
    else:
        resized = image.resize((int(short * width / height), short), PIL_INTERPOLATIONS[interpolation])
    top, left = round((resized.height - size) / 2.0), round((resized.width - size) / 2.0)
    expected = np.asarray(resized.crop((left, top, left + size, top + size)))
    got = EvalTransform(size, interpolation=interpolation, library="pil")(np.asarray(image))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("height", "width"), [(75, 100), (101, 67), (75, 97)])  # long sides 48, 54.3, 46.6
def test_eval_transform_cv2_equals_the_paddleclas_pipeline(height, width):
    image = photo(height, width)
    scale = 36 / min(height, width)
    resized = cv2.resize(image, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_LINEAR)
    top, left = (resized.shape[0] - 32) // 2, (resized.shape[1] - 32) // 2
    np.testing.assert_array_equal(EvalTransform(32)(image), resized[top : top + 32, left : left + 32])


def test_center_crop_pads_what_is_too_small():
    image = np.full((2, 8, 3), 9, np.uint8)
    cropped = center_crop(image, 4)
    assert cropped.shape == (4, 4, 3)
    assert cropped[:, 0, 0].tolist() == [0, 9, 9, 0]


def test_random_crop_box_has_the_asked_areas_and_ratios():
    rng = np.random.default_rng(0)
    boxes = np.array([random_crop_box(300, 400, (0.08, 1.0), (3 / 4, 4 / 3), rng) for _ in range(4000)])
    top, left, height, width = boxes.T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 300).all() and (left + width <= 400).all()
    area, ratio = height * width / 120000, width / height
    assert 0.075 < area.min() < 0.1 and 0.9 < area.max() <= 1  # rounding to pixels: a few per mille
    assert ratio.min() > 0.74 and ratio.max() < 1.35
    # Uniform areas, but large ones do not fit at every ratio. Reference: the same rejection, vectorised and unrounded.
    drawn = (
        np.sqrt(120000 * rng.uniform(0.08, 1, 100000)),
        np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), 100000) / 2),
    )
    fits = (drawn[0] * drawn[1] <= 400) & (drawn[0] / drawn[1] <= 300)
    # standard error of 4000 areas with deviation 0.22: 0.0035
    assert abs(area.mean() - (drawn[0][fits] ** 2).mean() / 120000) < 0.012
    assert abs(np.median(np.log(ratio))) < 0.05


@pytest.mark.parametrize(("shape", "expected"), [((10, 1000), (0, 493, 10, 13)), ((1000, 10), (493, 0, 13, 10))])
def test_random_crop_box_of_an_extreme_image_is_the_centre(shape, expected):
    assert random_crop_box(*shape, (0.5, 1.0), (3 / 4, 4 / 3), np.random.default_rng(0)) == expected


@pytest.mark.parametrize(
    ("shape", "ratio"), [((1, 900), (0.1, 0.2)), ((900, 1), (3, 4)), ((1, 1), (3, 4)), ((2, 3), (0.1, 0.2))]
)
def test_random_crop_box_of_an_image_as_thin_as_a_pixel_has_pixels(shape, ratio):
    box = random_crop_box(*shape, (0.08, 1.0), ratio, np.random.default_rng(0))
    assert min(box[2:]) >= 1 and box[0] + box[2] <= shape[0] and box[1] + box[3] <= shape[1]


@pytest.mark.parametrize("library", ["cv2", "pil"])
def test_train_transform_crops_then_resizes_then_flips(library):
    image = photo(60, 90)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        top, left, height, width = random_crop_box(60, 90, (0.08, 1.0), (3 / 4, 4 / 3), rng)
        part = image[top : top + height, left : left + width]
        if library == "pil":
            expected = np.asarray(Image.fromarray(part).resize((32, 32), Image.Resampling.BICUBIC))
        else:
            expected = cv2.resize(part, (32, 32), interpolation=CV2_INTERPOLATIONS["bicubic"])
        if rng.random() < 0.5:
            expected = cv2.flip(expected, 1)
        transform = TrainTransform(32, interpolation="bicubic", library=library)
        np.testing.assert_array_equal(transform(image, np.random.default_rng(seed)), expected)


def test_pad_crop_shifts_the_image():
    image = photo(8, 8)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = [padded[top : top + 8, left : left + 8].tobytes() for top in range(5) for left in range(5)]
    transform = TrainTransform(8, crop="pad", crop_padding=2, hflip=0)
    seen = {windows.index(transform(image, np.random.default_rng(seed)).tobytes()) for seed in range(300)}
    assert seen == set(range(25))


def test_simple_crop_is_a_window_of_the_scaled_image_in_a_mirrored_border():
    image = photo(16, 24)  # the short side is the size already
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    windows = [padded[top : top + 16, left : left + 16].tobytes() for top in range(9) for left in range(17)]
    seen = [TrainTransform(16, crop="simple", hflip=0)(image, np.random.default_rng(seed)) for seed in range(100)]
    places = {windows.index(pixels.tobytes()) for pixels in seen}
    assert {place // 17 for place in places} == set(range(9)) and {place % 17 for place in places} == set(range(17))


@pytest.mark.parametrize("upright", [False, True])
def test_scaled_decoding_is_left_out_where_all_pixels_are_decoded(upright):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(photo(200, 120), exif=exif)
    pixels = np.rot90(decode(content, "pil"), -1) if upright else decode(content, "pil")
    content = content if upright else content[:-2] + bytes(64)  # zeros in place of its end: Pillow alone reads it
    for seed in range(4):
        found = TrainTransform(16, upright=upright)(content, np.random.default_rng(seed))
        np.testing.assert_array_equal(found, TrainTransform(16)(pixels, np.random.default_rng(seed)))


def test_scaled_decoding_keeps_the_crop_and_its_content():
    content = encoded(cv2.resize(photo(64, 80), (1000, 800), interpolation=cv2.INTER_CUBIC), quality=95)
    scaled = TrainTransform(48, hflip=0)
    full = TrainTransform(48, hflip=0, scaled_decode=False, interpolation="bilinear")
    for seed in range(8):
        small, large = scaled(content, np.random.default_rng(seed)), full(content, np.random.default_rng(seed))
        assert small.shape == large.shape == (48, 48, 3)
        # same picture, other filter; a crop shifted by 2 % of its side differs by more than 10 on this image
        assert np.abs(small.astype(float) - large).mean() < 4


def test_scaled_decoding_is_used_only_where_pixels_suffice(monkeypatch):
    factors = []

    def spy(content, library, channels, factor=1):
        factors.append(factor)
        return decode(content, library, channels, factor)

    monkeypatch.setattr("image_classification.data.transforms.decode", spy)
    content = encoded(photo(200, 400))
    for size in (10, 50, 100, 101):
        TrainTransform(size, crop_scale=(1.0, 1.0), crop_ratio=(2.0, 2.0))(content, np.random.default_rng(0))
    assert factors == [8, 4, 2, 1]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("view", ["whole", "window", "mirrored"])
def test_flip_and_planes_are_those_of_numpy_whatever_the_memory_layout(channels, view):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    pixels = {"whole": pixels, "window": pixels[2:8, 1:6], "mirrored": pixels[:, ::-1]}[view]
    np.testing.assert_array_equal(flip(pixels), pixels[:, ::-1])
    memory = np.zeros((3, channels, *pixels.shape[:2]), np.uint8)
    to_planes(pixels, memory[1])
    np.testing.assert_array_equal(memory[1], pixels.transpose(2, 0, 1))
    assert not memory[0].any() and not memory[2].any()


def test_evaluation_without_aspect_ratio_squeezes_to_a_square_first():
    image = photo(300, 500)
    squeezed = cv2.resize(image, (256, 256), interpolation=cv2.INTER_LINEAR)
    got = EvalTransform(224, keep_aspect=False)(image)
    np.testing.assert_array_equal(got, squeezed[16:240, 16:240])
    assert not np.array_equal(got, EvalTransform(224)(image))


def test_key_of_the_aspect_ratio_reaches_the_evaluation_loader():
    for settings, expected in (({}, (256, 426)), ({"KEEP_ASPECT": False}, (256, 256))):
        data = {"DATASET": "digits", "IMAGE_SIZE": 224, "NUM_WORKERS": 0, **settings}
        loader = build_eval_loader(build_config([("test", {"DATA": data, "MODEL": {"NUM_CLASSES": 10}})]))
        assert loader.maker.transform.scaled_size(300, 500) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("height", "width", "options", "expected"),
    [
        (200, 400, {}, (0, 100, 200, 300)),  # the short side is 100 pixels then, and whole
        (200, 400, {"keep_aspect": False}, (0, 0, 200, 400)),
        (200, 200, {"crop_pct": 0.5}, (50, 50, 150, 150)),
    ],
)
def test_box_is_the_part_of_the_photograph_that_the_model_sees(height, width, options, expected):
    transform = EvalTransform(100, **{"crop_pct": 1.0, **options})
    assert transform.box(height, width) == expected
    photo = np.zeros((height, width, 3), np.uint8)
    top, left, bottom, right = expected
    photo[top:bottom, left:right] = 255
    assert transform(photo)[2:-2, 2:-2].min() == 255 and transform(photo).shape == (100, 100, 3)
