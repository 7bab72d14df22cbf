"""Weights of Paddle's own model zoos: logits equal, through files that Paddle wrote."""

import re

import numpy as np
import paddle
import pytest

from image_classification.runtime import UserError
from image_classification.weights import find_weights, load_pretrained, preprocessing_of, read_registry
from tests.helpers.model_zoo import CONFIGS, build
from tests.helpers.weight_files import PADDLEVIT_TRANSFORMER

VARIANTS = {path.stem: path for path in CONFIGS}


def randomise(model):
    rng = np.random.default_rng(0)
    for name, value in model.state_dict().items():
        if name.endswith("_variance"):
            value.set_value(rng.uniform(0.7, 1.3, value.shape).astype(np.float32))
        elif value.ndim == 1:
            value.set_value(value.numpy() + rng.normal(0, 0.1, value.shape).astype(np.float32))
    return model


def logits_of(model, size):
    images = paddle.to_tensor(np.random.default_rng(1).standard_normal((1, 3, size, size)).astype(np.float32))
    model.eval()
    with paddle.no_grad():
        return model(images).numpy()


def save_and_load(theirs, name, path, **changes):
    paddle.save(theirs if isinstance(theirs, dict) else theirs.state_dict(), str(path))
    ours = build(VARIANTS[name], **changes)
    return ours, load_pretrained(ours, str(path))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "alexnet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_logits_equal_paddle_vision(tmp_path, name):
    paddle.seed(0)
    size = 224 if name == "alexnet" else 64  # paddle.vision's AlexNet has no adaptive pooling
    theirs = randomise(getattr(paddle.vision.models, name)())
    ours, _ = save_and_load(theirs, name, tmp_path / "theirs.pdparams")
    expected, found = logits_of(theirs, size), logits_of(ours, size)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def paddleclas_name(name, depths, is_vd):
    """Return PaddleClas's name of one of our ResNet parameters; the inverse of what the loader must find out."""
    stage = re.match(r"layer(\d)\.(\d+)\.(.*)", name)
    if not stage:
        name = re.sub(r"^bn1\.", f"stem.{2 * is_vd}.bn.", name)
        in_sequence = re.match(r"conv1\.(\d)\.(.*)", name)  # convolution, norm, activation and so on
        if in_sequence:
            number, kind = divmod(int(in_sequence[1]), 3)
            return f"stem.{number}.{('conv', 'bn')[kind]}.{in_sequence[2]}"
        return re.sub(r"^conv1\.", "stem.0.conv.", name)
    block = sum(depths[: int(stage[1]) - 1]) + int(stage[2])
    rest = stage[3].replace(f"downsample.{0 + is_vd}.", "short.conv.").replace(f"downsample.{1 + is_vd}.", "short.bn.")
    rest = re.sub(r"^(conv|bn)(\d)\.", lambda m: f"conv{int(m[2]) - 1}.{m[1]}.", rest)
    return f"blocks.{block}.{rest}"


@pytest.mark.parametrize(
    ("name", "depths", "expected"),
    [
        ("resnet50", (3, 4, 6, 3), {"blocks.15.conv2.bn._mean", "blocks.3.short.conv.weight", "stem.0.bn._variance"}),
        ("resnet18_vb", (2, 2, 2, 2), {"blocks.0.short.conv.weight", "blocks.7.conv1.bn.bias"}),
        ("resnet34_vd", (3, 4, 6, 3), {"blocks.0.short.bn.weight", "stem.1.conv.weight", "stem.2.bn._mean"}),
    ],
)
def test_paddleclas_resnet_is_read_by_its_own_names(tmp_path, name, depths, expected):
    model = randomise(build(VARIANTS[name]))
    is_vd = name.endswith("_vd")
    renamed = {paddleclas_name(ours, depths, is_vd): value for ours, value in model.state_dict().items()}
    assert expected <= renamed.keys()
    ours, report = save_and_load(renamed, name, tmp_path / "theirs.pdparams")
    assert report.dialect == "PaddleClas ResNet"
    for key, value in model.state_dict().items():
        assert paddle.equal_all(ours.state_dict()[key], value), key


PADDLEVIT_SWIN = (
    (r"patch_embed\.proj\.", "patch_embedding.patch_embed."),
    (r"patch_embed\.norm\.", "patch_embedding.norm."),
    (r"layers\.1\.downsample\.", "stages.0.downsample."),  # of two stages; a stage ends with it there
    (r"layers\.", "stages."),
    (r"head\.fc\.", "fc."),
)
SMALL_SWIN = {"embed_dim": 12, "depths": (2, 2), "num_heads": (1, 2), "image_size": 56}
PADDLEVIT = {
    "vit_tiny_digits": ("PaddleViT", PADDLEVIT_TRANSFORMER, {}),
    "deit_tiny_patch16_224": ("PaddleViT", PADDLEVIT_TRANSFORMER, {"depth": 2}),
    "deit_tiny_distilled_patch16_224": ("PaddleViT", PADDLEVIT_TRANSFORMER, {"depth": 2}),
    "swin_tiny_patch4_window7_224": ("PaddleViT Swin", PADDLEVIT_SWIN, SMALL_SWIN),
    "convnext_tiny": ("our own names", (), {"dims": (8, 16), "depths": (1, 2)}),
}
# some names as PaddleViT's classes give them, so that the rules above are no mere inverse of the loader's
PADDLEVIT_SAMPLES = {
    "vit_tiny_digits": {
        "cls_token", "position_embedding", "patch_embedding.patch_embedding.bias", "encoder.layers.3.attn_norm.weight",
        "encoder.layers.0.attn.qkv.weight", "encoder.layers.0.attn.out.bias", "encoder.layers.0.mlp.fc2.weight",
        "encoder.encoder_norm.weight", "classifier.weight",
    },
    "deit_tiny_patch16_224": {"encoder.layers.1.mlp_norm.bias", "classifier.bias"},
    "deit_tiny_distilled_patch16_224": {"dist_token", "classifier.weight", "classifier_dist.weight"},
    "swin_tiny_patch4_window7_224": {
        "patch_embedding.patch_embed.weight", "patch_embedding.norm.bias", "stages.0.downsample.reduction.weight",
        "stages.0.downsample.norm.weight", "stages.1.blocks.1.attn.relative_position_bias_table", "norm.weight",
        "stages.1.blocks.0.attn.proj.bias", "stages.0.blocks.1.mlp.fc1.weight", "fc.weight",
    },
    "convnext_tiny": {
        "stem.0.weight", "stem.1.bias", "stages.1.downsample.0.weight", "stages.1.blocks.1.conv_dw.weight",
        "stages.0.blocks.0.mlp.fc1.weight", "stages.0.blocks.0.gamma", "head.norm.weight", "head.fc.weight",
    },
}  # fmt: skip


def paddlevit_name(name, rules):
    """Return PaddleViT's name of one of our parameters."""
    for pattern, theirs in rules:
        if re.match(pattern, name):
            return re.sub(pattern, theirs, name, count=1)
    return name


@pytest.mark.parametrize("name", PADDLEVIT)
def test_names_of_paddlevit_are_understood(tmp_path, name):
    dialect, rules, changes = PADDLEVIT[name]
    model = randomise(build(VARIANTS[name], **changes))
    renamed = {paddlevit_name(own, rules): value for own, value in model.state_dict().items()}
    assert renamed.keys() >= PADDLEVIT_SAMPLES[name]
    if "Swin" in dialect:  # its files hold these buffers, too
        renamed["stages.0.blocks.0.attn.relative_position_index"] = paddle.zeros([49, 49], "int64")
        renamed["stages.0.blocks.1.attn_mask"] = paddle.zeros([4, 49, 49])
    ours, report = save_and_load(renamed, name, tmp_path / "theirs.pdparams", **changes)
    assert report.dialect == dialect
    for own, value in model.state_dict().items():
        assert paddle.equal_all(ours.state_dict()[own], value), own


def test_weights_behind_a_page_name_the_page_and_the_place_and_load_from_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path))
    name = "paddlevit/deit_tiny_distilled_patch16_224"
    place = tmp_path / "paddlevit--deit_tiny_distilled_patch16_224.pdparams"
    with pytest.raises(UserError, match=r"\.pdparams file from https://drive\.google\.com/file/d/1fku9") as caught:
        find_weights(name)
    assert str(caught.value).endswith(f"put it at {place}") and "\n" not in str(caught.value)
    place.touch()
    assert find_weights(name) == place


def test_paddlevit_of_the_registry_is_evaluated_as_its_configurations_say():
    published = [entry for entry in read_registry().values() if entry.id.startswith("paddlevit/")]
    assert {entry.family for entry in published} == {"ViT", "DeiT", "Swin", "ConvNeXt", "RegNet"}
    assert len(published) == 29
    for entry in published:
        values = preprocessing_of(entry.id)
        crop = 1.0 if "384" in entry.variant else 0.9 if entry.family == "Swin" else 0.875
        mean = 0.5 if entry.family == "ViT" else 0.485
        assert (values["RESIZE_LIBRARY"], values["INTERPOLATION"]) == ("pil", "bicubic")
        assert (values["CROP_PCT"], values["IMAGENET_MEAN"][0], values["EXIF_ORIENTATION"]) == (crop, mean, False)
