"""Evaluation images of PaddleClas' weights equal its own pipeline, spelt out here with plain OpenCV."""

import types

import cv2
import numpy as np
import pytest

from image_classification.preview import eval_pixels, normalised
from image_classification.weights import preprocessing_of, read_registry

WEIGHTS = [entry for entry in read_registry().values() if entry.preprocessing["library"] == "cv2"]
RESIZE_SHORT, CROP = 256, 224  # of PaddleClas' evaluation configurations of these weights


def paddleclas_pixels(content):
    """DecodeImage(to_rgb), ResizeImage(resize_short=256), CropImage(224): uint8 [224, 224, 3]."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    height, width = image.shape[:2]
    percent = float(RESIZE_SHORT) / min(height, width)
    image = cv2.resize(image, (int(round(width * percent)), int(round(height * percent))))
    top, left = (image.shape[0] - CROP) // 2, (image.shape[1] - CROP) // 2
    return image[top : top + CROP, left : left + CROP]


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
    return paths


def test_every_paddleclas_network_of_the_registry_is_here_but_the_one_resized_by_pillow():
    names = {entry.id for entry in read_registry().values() if entry.id.startswith("paddleclas/")}
    # PaddleClas' DeiT_small_patch16_224.yaml, Eval: ResizeImage(resize_short=256, interpolation=bicubic, backend=pil)
    assert names - {entry.id for entry in WEIGHTS} == {"paddleclas/DeiT_small_patch16_224"}
    values = preprocessing_of("paddleclas/DeiT_small_patch16_224")
    assert (values["RESIZE_LIBRARY"], values["INTERPOLATION"], values["CROP_PCT"]) == ("pil", "bicubic", 0.875)


@pytest.mark.parametrize("entry", WEIGHTS, ids=lambda entry: entry.id)
def test_input_equals_paddleclas_own(entry, photos):
    data = types.SimpleNamespace(IMAGE_SIZE=entry.preprocessing["image_size"], IMAGE_CHANNELS=3, KEEP_ASPECT=True)
    vars(data).update(preprocessing_of(entry.id))
    config = types.SimpleNamespace(DATA=data)
    pixels = eval_pixels(config, photos)
    expected = [paddleclas_pixels(path.read_bytes()) for path in photos]
    np.testing.assert_array_equal(pixels, expected)
    mean = (0.5,) * 3 if "ViT" in entry.id else (0.485, 0.456, 0.406)
    std = (0.5,) * 3 if "ViT" in entry.id else (0.229, 0.224, 0.225)
    expected = np.stack([paddleclas_input(image, mean, std) for image in expected])
    # the pixels are bit-equal; one multiplication and one addition round otherwise than three operations, by 3 of
    # float32's units at the largest value, 2.7
    np.testing.assert_allclose(normalised(config, pixels), expected, rtol=0, atol=8e-7)
