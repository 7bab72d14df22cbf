"""Gradients of a training-mode pass equal timm's for a model of each family."""

import numpy as np
import paddle
import pytest

from image_classification.weights import load_pretrained
from tests.helpers.model_zoo import build

from .test_groups import smallest_variants
from .test_logits import VARIANTS, in_float64, job_of, write_images

pytestmark = pytest.mark.peers

# Of the largest of a tensor, computed in float64. Files are read in float32; XCiT normalises lengths with another
# epsilon within the root (4e-6), and hard sigmoids have a slope of 0.1666667 in Paddle (5e-7).
TOLERANCE = 1e-5


def trained(path, side):
    model = build(path, image_size=side, num_classes=1000)
    model.train()
    for layer in model.sublayers():
        if isinstance(getattr(layer, "p", None), float):  # of a dropout
            layer.p = 0.0
    return model


@pytest.mark.parametrize("name", smallest_variants())
def test_gradients_equal_timms(peers, tmp_path, name):
    side, job = job_of("timm", name)
    images, file = write_images(tmp_path, side), tmp_path / "weights.safetensors"
    cotangents = np.random.default_rng(1).standard_normal((len(images), 1000))
    np.save(tmp_path / "cotangents.npy", cotangents)
    peers.ask(action="gradients", file=file, folder=tmp_path, **job)
    model, theirs = (trained(VARIANTS[name], side) for _ in range(2))
    load_pretrained(model, str(file))
    load_pretrained(theirs, str(tmp_path / "gradients.safetensors"))  # the conversion of weights is linear
    in_float64(model)
    logits, expected = model(images.astype("float64")), np.load(tmp_path / "logits.npy")
    assert np.abs(logits.numpy() - expected).max() <= TOLERANCE * np.abs(expected).max()
    (logits * paddle.to_tensor(cotangents)).sum().backward()
    own, expected = dict(model.named_parameters()), dict(theirs.named_parameters())
    assert own.keys() == expected.keys()
    for each, parameter in own.items():
        if parameter.stop_gradient:
            continue
        found, wanted = parameter.grad.numpy(), expected[each].numpy()
        # those that a norm makes zero but for rounding are up to 2e-8 here
        allowed = TOLERANCE * max(np.abs(wanted).max(), 1e-2)
        assert np.abs(found - wanted).max() <= allowed, each
