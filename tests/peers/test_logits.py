"""Logits of every variant equal those of timm and torchvision, from files that these libraries wrote and back."""

import functools
import inspect

import numpy as np
import paddle
import pytest

from image_classification.config import load_config
from image_classification.weights import export_tensors, load_pretrained, write_weights
from image_classification.weights.keymap import OWN_NAMES
from tests.helpers.model_zoo import CONFIGS, build, builder, published, shallow, small_side

pytestmark = pytest.mark.peers

TOLERANCE = 1e-5  # of the largest logit: float32 sums in another order
THEIR_NAMES = {"width_slope": "wa"}  # of arguments that make a giant smaller
FORMATS = ("safetensors", "zip", "legacy")
VARIANTS = {path.stem: path for path in CONFIGS if not path.stem.endswith("_digits")}
ROUND_TRIP_PARAMETERS = 30e6  # larger models are loaded in one direction only


def of_peer(library, name):
    """Return what a peer calls a variant, or a dictionary of that and of options, None where it does not have it.

    timm has the variant's name unless the registry says otherwise, torchvision only what the registry says.
    """
    return ({"timm": name} | published().get(name, {}).get("peers", {})).get(library)


def job_of(library, name):
    """Return (image side, what the peer is to build) of a variant that it has.

    timm builds a model of one image size for a small one, torchvision has its own size.
    """
    theirs = of_peer(library, name)
    options = {"num_classes": 1000} | (theirs if isinstance(theirs, dict) else {"name": theirs})
    side = small_side(VARIANTS[name])
    if "image_size" in inspect.signature(builder(VARIANTS[name].parents[1])).parameters:
        if library == "timm":
            options["img_size"] = side
        else:
            side = load_config([f"-cfg={VARIANTS[name]}"], builder(VARIANTS[name].parents[1])).DATA.IMAGE_SIZE
    return side, {"library": library, "name": options.pop("name"), "options": options}


CASES = [(library, name) for library in ("timm", "torchvision") for name in VARIANTS if of_peer(library, name)]


def write_images(folder, size):
    images = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    np.save(folder / "images.npy", images)
    return paddle.to_tensor(images)


def in_float64(model):
    """Convert a model, but not the indices of position biases, which Paddle would convert, too."""
    indices = {name: value.clone() for name, value in model.named_buffers() if not value.is_floating_point()}
    model.to(dtype="float64")
    for name, value in indices.items():
        path, _, buffer = name.rpartition(".")
        setattr(functools.reduce(getattr, path.split("."), model), buffer, value)


def relative_error(model, images, folder):
    expected = np.load(folder / "logits.npy")  # float64 of a network with BatchNorms, see reference.py
    model.eval()
    if expected.dtype != np.float32:
        in_float64(model)
    with paddle.no_grad():
        found = model(images.astype(expected.dtype)).numpy()
    largest = np.abs(expected).max()  # 1e-5 in a fresh network of many BatchNorms, whose statistics are not yet its own
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.isfinite(expected).all() and np.ptp(expected) > 1e-3 * largest
    return float(np.abs(found - expected).max() / largest)


def load_theirs(peers, folder, library, name, **changes):
    """Make the peer's model and load its file into ours; return (our model, its report, images, the peer's job).

    A giant has a few of its equal blocks on both sides.
    """
    size, job = job_of(library, name)
    changes = shallow(VARIANTS[name]) | changes
    job["options"] |= {THEIR_NAMES.get(key, key): value for key, value in changes.items()}
    images = write_images(folder, size)
    file_format = FORMATS[sum(name.encode()) % 3]
    ending = "safetensors" if file_format == "safetensors" else "pth"
    file = folder / f"weights.{ending}"
    peers.ask(action="make", format=file_format, file=file, folder=folder, **job)
    model = build(VARIANTS[name], image_size=size, **changes)
    report = load_pretrained(model, str(file))
    file.unlink()  # gigabytes for the largest
    return model, report, images, job


@pytest.mark.parametrize(("library", "name"), CASES)
def test_logits_equal_the_peers_and_a_file_of_the_same_names_is_loaded_strictly_by_it(peers, tmp_path, library, name):
    model, report, images, job = load_theirs(peers, tmp_path, library, name)
    assert relative_error(model, images, tmp_path) <= TOLERANCE
    if report.dialect == OWN_NAMES and published()[name]["parameters"] <= ROUND_TRIP_PARAMETERS:
        paddle.seed(0)
        fresh = build(VARIANTS[name], image_size=images.shape[-1])
        file = tmp_path / ("ours.pth" if sum(name.encode()) % 2 else "ours.safetensors")
        write_weights(file, export_tensors(fresh, "torch"))
        peers.ask(action="load", file=file, folder=tmp_path, **job)
        assert relative_error(fresh, images, tmp_path) <= TOLERANCE


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_logits_equal_timm_with_the_norm_after_the_pooling(peers, tmp_path, pool):
    model, _, images, _ = load_theirs(peers, tmp_path, "timm", "vit_tiny_patch16_224", global_pool=pool, fc_norm=True)
    assert relative_error(model, images, tmp_path) <= TOLERANCE
