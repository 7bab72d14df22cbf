"""Weights and photographs for the tools that are given a model."""

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification import zoo
from image_classification.weights import export_tensors, write_weights
from tests.helpers.model_tools import VARIANT


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return the path of fixed weights of the small model."""
    paddle.seed(0)
    model, _ = zoo.load_model(VARIANT)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    write_weights(path, export_tensors(model, "torch"))
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (40, 60)), ("b.jpg", (64, 32)), ("sub/c.png", (32, 32))):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(folder / name)
    return folder
