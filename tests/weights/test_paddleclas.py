"""Evaluation images of PaddleClas' weights equal its own pipeline, spelt out here with plain OpenCV and Pillow."""

import dataclasses

import cv2
import numpy as np
import pytest
from PIL import Image

from image_classification.config import Config
from image_classification.data.transforms import EvalTransform, TrainTransform
from image_classification.preview import eval_pixels, normalised
from image_classification.weights import preprocessing_of, read_registry

WEIGHTS = [entry for entry in read_registry().values() if entry.id.startswith("paddleclas/")]
RESIZE_SHORT, CROP = 256, 224  # of PaddleClas' evaluation configurations of these weights
# in its YAMLs, Eval: ResizeImage(resize_short=..., interpolation=bicubic, backend=pil)
BY_PILLOW = {"DeiT_small_patch16_224": 256} | {f"PPHGNetV2_B{size}_ssld": 232 for size in range(7)}
BY_PILLOW |= {"RepVGG_B3": 256, "RepVGG_B3g4": 256, "RepVGG_D2se": 320}
CROPS = {"RepVGG_D2se": 320}


def paddleclas_pixels(content, name="ResNet50"):
    """DecodeImage(to_rgb), ResizeImage(resize_short=256), CropImage(224): uint8 [224, 224, 3]."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    height, width = image.shape[:2]
    percent = float(BY_PILLOW.get(name, RESIZE_SHORT)) / min(height, width)
    size = int(round(width * percent)), int(round(height * percent))
    if name in BY_PILLOW:
        image = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BICUBIC))
    else:
        image = cv2.resize(image, size)
    crop = CROPS.get(name, CROP)
    top, left = (image.shape[0] - crop) // 2, (image.shape[1] - crop) // 2
    return image[top : top + crop, left : left + crop]


def paddleclas_input(pixels, mean, std):
    """NormalizeImage(scale=1/255), ToCHWImage: float32 [3, 224, 224]."""
    mean, std = np.array(mean, np.float32), np.array(std, np.float32)
    return ((pixels.astype(np.float32) * np.float32(1 / 255) - mean) / std).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return paths of pictures with structure at all scales: enlarged, shrunk, odd margins, exact fit; JPEG and PNG."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos")
    paths = []
    for index, (height, width) in enumerate([(331, 437), (437, 331), (500, 375), (199, 263), (257, 1023), (256, 256)]):
        coarse = cv2.resize(rng.integers(0, 256, (9, 13, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
        noisy = (coarse + rng.integers(-40, 40, coarse.shape)).clip(0, 255).astype(np.uint8)
        paths.append(folder / f"{index}.{'png' if index % 2 else 'jpg'}")
        cv2.imwrite(str(paths[-1]), noisy)
    for orientation in range(2, 9):
        paths.append(folder / f"orientation{orientation}.jpg")
        write_oriented(paths[-1], cv2.imread(str(paths[0])), orientation)
    return paths


def write_oriented(path, pixels, orientation):
    """Write a JPEG whose EXIF entry asks the reader to mirror and turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, quality=95, exif=exif)


@pytest.mark.parametrize("entry", WEIGHTS, ids=lambda entry: entry.id)
def test_input_equals_paddleclas_own(entry, photos):
    name = entry.id.removeprefix("paddleclas/")
    assert entry.preprocessing["image_size"] == CROPS.get(name, CROP)
    config = config_of(entry.id)
    pixels = eval_pixels(config, photos)
    expected = [paddleclas_pixels(path.read_bytes(), name) for path in photos]
    np.testing.assert_array_equal(pixels, expected)
    mean = (0.5,) * 3 if "ViT" in entry.id else (0.485, 0.456, 0.406)
    std = (0.5,) * 3 if "ViT" in entry.id else (0.229, 0.224, 0.225)
    expected = np.stack([paddleclas_input(image, mean, std) for image in expected])
    # the pixels are bit-equal; one multiplication and one addition round otherwise than three operations, by 3 of
    # float32's units at the largest value, 2.7
    np.testing.assert_allclose(normalised(config, pixels), expected, rtol=0, atol=8e-7)


def config_of(weights):
    """Return a configuration with the preprocessing of a set of published weights."""
    config = Config()
    size = CROPS.get(weights.removeprefix("paddleclas/"), CROP)
    return dataclasses.replace(
        config, DATA=dataclasses.replace(config.DATA, IMAGE_SIZE=size, **preprocessing_of(weights))
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photograph_is_turned_by_its_exif_entry_for_paddleclas_only(tmp_path, orientation):
    coarse = np.random.default_rng(1).integers(0, 256, (9, 13, 3), np.uint8)
    path = tmp_path / "photo.jpg"
    write_oriented(path, cv2.resize(coarse, (437, 331), interpolation=cv2.INTER_CUBIC), orientation)
    lying = np.asarray(Image.open(path))  # Pillow ignores the entry, and so do torchvision and timm
    turned = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), 1)[:, :, ::-1]  # PaddleClas' DecodeImage
    assert lying.shape == (331, 437, 3) and turned.shape[:2] == ((437, 331) if orientation > 4 else (331, 437))
    assert np.array_equal(lying, turned) == (orientation == 1)

    found = eval_pixels(config_of("paddleclas/ResNet50"), [path])[0]
    np.testing.assert_array_equal(found, paddleclas_pixels(path.read_bytes()))
    config = config_of("torchvision/resnet50.V1")
    short = RESIZE_SHORT / min(lying.shape[:2])
    size = [int(side * short) for side in lying.shape[1::-1]]
    resample = Image.Resampling[config.DATA.INTERPOLATION.upper()]
    image = np.asarray(Image.fromarray(np.ascontiguousarray(lying)).resize(size, resample))
    top, left = (round((side - CROP) / 2) for side in image.shape[:2])
    expected = image[top : top + CROP, left : left + CROP]
    np.testing.assert_array_equal(eval_pixels(config, [path])[0], expected)


@pytest.mark.parametrize(("height", "width", "scaled"), [(192, 201, (224, 235)), (365, 320, (255, 224))])
def test_long_side_is_rounded_as_paddleclas_rounds_it_where_it_ends_in_a_half(height, width, scaled):
    factor = 224.0 / min(height, width)
    assert scaled == (int(round(height * factor)), int(round(width * factor)))
    assert EvalTransform(224, crop_pct=1.0, library="cv2").scaled_size(height, width) == scaled


@pytest.mark.parametrize("crop", ["random_resized", "simple", "pad"])
def test_training_crop_of_a_turned_photograph_is_that_of_the_same_pixels_upright(tmp_path, crop):
    pixels = np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8)
    write_oriented(tmp_path / "photo.jpg", pixels, 6)
    content = (tmp_path / "photo.jpg").read_bytes()
    upright = np.ascontiguousarray(cv2.imdecode(np.frombuffer(content, np.uint8), 1)[:, :, ::-1])
    transform = TrainTransform(16, crop=crop, upright=True)
    found, expected = (transform(image, np.random.default_rng(2)) for image in (content, upright))
    np.testing.assert_array_equal(found, expected)
