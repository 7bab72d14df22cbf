"""Logits of every variant equal those of timm and torchvision, from files that these libraries wrote and back."""


import numpy as np
import paddle
import pytest

from image_classification.config import load_config
from image_classification.weights import export_tensors, load_pretrained, write_weights
from tests.helpers.model_zoo import CONFIGS, build, builder

pytestmark = pytest.mark.peers

TOLERANCE = 1e-5  # of the largest logit: float32 sums in another order
FORMATS = ("safetensors", "zip", "legacy")
TORCHVISION_VIT = {
    "vit_base_patch16_224": "vit_b_16",
    "vit_base_patch32_224": "vit_b_32",
    "vit_large_patch16_224": "vit_l_16",
    "vit_large_patch32_224": "vit_l_32",
    "vit_huge_patch14_224": "vit_h_14",
}
TORCHVISION_NAMES = ("AlexNet", "VGG", "ResNet", "ConvNeXt")  # families whose variants are called as here
TORCHVISION_SWIN = {f"swin_{size}_patch4_window7_224": f"swin_{size[0]}" for size in ("tiny", "small", "base")}
VARIANTS = {path.stem: path for path in CONFIGS if not path.stem.endswith("_digits")}


def image_size_of(name):
    """Return a side that keeps the test short: three patches for a ViT; Swin's windows fix the side."""
    if name.startswith("swin"):
        return load_config([f"-cfg={VARIANTS[name]}"], builder(VARIANTS[name].parents[1])).DATA.IMAGE_SIZE
    if name.startswith(("vit", "deit")):
        return 3 * int(name.split("patch")[1].split("_")[0])
    return 64


def timm_options(name):
    options = {"num_classes": 1000}
    if name.startswith(("vit", "deit")):
        options["img_size"] = image_size_of(name)
    if name == "vit_tiny_patch32_224":
        options["patch_size"] = 32
    return options


def timm_name(name):
    return "vit_tiny_patch16_224" if name == "vit_tiny_patch32_224" else name


def torchvision_cases():
    cases = {name: name for name in VARIANTS if VARIANTS[name].parents[1].name in TORCHVISION_NAMES}
    return cases | TORCHVISION_VIT | TORCHVISION_SWIN


def write_images(folder, size):
    images = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    np.save(folder / "images.npy", images)
    return paddle.to_tensor(images)


def relative_error(model, images, folder):
    model.eval()
    with paddle.no_grad():
        found = model(images).numpy()
    expected = np.load(folder / "logits.npy")
    assert found.shape == expected.shape and np.isfinite(expected).all() and np.ptp(expected) > 1e-3
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def compare(peers, folder, name, job, **changes):
    """Make the peer's model, load its file into ours, and return the relative error of the logits."""
    size = image_size_of(name)
    images = write_images(folder, size)
    file_format = FORMATS[sum(name.encode()) % 3]
    ending = "safetensors" if file_format == "safetensors" else "pth"
    file = folder / f"weights.{ending}"
    peers.ask(action="make", format=file_format, file=file, folder=folder, **job)
    model = build(VARIANTS[name], image_size=size, **changes)
    load_pretrained(model, str(file))
    file.unlink()  # gigabytes for the largest
    return relative_error(model, images, folder)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "alexnet"])
def test_logits_equal_timm(peers, tmp_path, name):
    job = {"library": "timm", "name": timm_name(name), "options": timm_options(name)}
    assert compare(peers, tmp_path, name, job) <= TOLERANCE


@pytest.mark.parametrize("name", torchvision_cases())
def test_logits_equal_torchvision(peers, tmp_path, name):
    options = {"image_size": image_size_of(name)} if name in TORCHVISION_VIT else {}
    if name in TORCHVISION_VIT and "huge" in name:
        options["num_classes"] = 1000
    job = {"library": "torchvision", "name": torchvision_cases()[name], "options": options}
    assert compare(peers, tmp_path, name, job) <= TOLERANCE


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_logits_equal_timm_with_the_norm_after_the_pooling(peers, tmp_path, pool):
    name = "vit_tiny_patch16_224"
    options = timm_options(name) | {"global_pool": pool, "fc_norm": True}
    job = {"library": "timm", "name": name, "options": options}
    assert compare(peers, tmp_path, name, job, global_pool=pool, fc_norm=True) <= TOLERANCE


ROUND_TRIPS = {
    "vit_tiny_patch16_224": "timm",
    "deit_tiny_distilled_patch16_224": "timm",
    "resnet18": "torchvision",
    "resnext50_32x4d": "timm",
    "alexnet": "torchvision",
    "vgg11_bn": "torchvision",
    "convnext_tiny": "timm",
    "swin_tiny_patch4_window7_224": "timm",
}


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_our_file_is_loaded_strictly_by_its_original(peers, tmp_path, name, ending):
    paddle.seed(0)
    library = ROUND_TRIPS[name]
    size = image_size_of(name)
    images = write_images(tmp_path, size)
    model = build(VARIANTS[name], image_size=size)
    file = tmp_path / f"ours.{ending}"
    write_weights(file, export_tensors(model, "torch"))
    options = timm_options(name) if library == "timm" else {}
    peers.ask(action="load", file=file, folder=tmp_path, library=library, name=name, options=options)
    assert relative_error(model, images, tmp_path) <= TOLERANCE
