"""Our evaluation images equal those of the transform that timm or torchvision itself gives to each of its weights."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from image_classification.config import Config
from image_classification.preview import eval_pixels, normalised
from image_classification.weights import preprocessing_of, read_registry

pytestmark = pytest.mark.peers

WEIGHTS = [entry for entry in read_registry().values() if entry.id.startswith(("timm/", "torchvision/"))]


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    """Return the path of a picture with structure at all scales and an odd shape."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 13, 3), np.uint8)).resize((437, 331), Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse).astype(int) + rng.integers(-40, 40, (331, 437, 3))
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
    return path


@pytest.mark.parametrize("entry", WEIGHTS, ids=lambda entry: entry.id)
def test_input_equals_the_publishers_own(peers, photo, tmp_path, entry):
    size = entry.preprocessing["image_size"]
    peers.ask(action="preprocess", id=entry.id, image_size=size, image=photo, folder=tmp_path)
    config = Config()
    config = dataclasses.replace(
        config, DATA=dataclasses.replace(config.DATA, IMAGE_SIZE=size, **preprocessing_of(entry.id))
    )
    found = normalised(config, eval_pixels(config, [photo]))[0]
    # one step of a pixel is 1/255 / 0.5 = 8e-3 after the normalisation: below 1e-5 all pixels are bit-equal
    np.testing.assert_allclose(found, np.load(tmp_path / "input.npy"), atol=1e-5)
