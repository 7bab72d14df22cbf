"""Weights of Paddle's own model zoos: logits equal, through files that Paddle wrote."""

import re

import numpy as np
import paddle
import pytest
from model_zoo import CONFIGS, build

from image_classification.weights import load_pretrained

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


def paddleclas_name(name):
    """Return PaddleClas's name of one of our ResNet-50 parameters; the inverse of what the loader must find out."""
    depths = (3, 4, 6, 3)
    stage = re.match(r"layer(\d)\.(\d+)\.(.*)", name)
    if not stage:
        return re.sub(r"^bn1\.", "stem.0.bn.", re.sub(r"^conv1\.", "stem.0.conv.", name))
    block = sum(depths[: int(stage[1]) - 1]) + int(stage[2])
    rest = stage[3].replace("downsample.0.", "short.conv.").replace("downsample.1.", "short.bn.")
    rest = re.sub(r"^(conv|bn)(\d)\.", lambda m: f"conv{int(m[2]) - 1}.{m[1]}.", rest)
    return f"blocks.{block}.{rest}"


def test_block_numbers_of_paddleclas_resnet_run_through(tmp_path):
    model = randomise(build(VARIANTS["resnet50"]))
    renamed = {paddleclas_name(name): value for name, value in model.state_dict().items()}
    assert {"blocks.15.conv2.bn._mean", "blocks.3.short.conv.weight", "stem.0.bn._variance"} <= renamed.keys()
    ours, report = save_and_load(renamed, "resnet50", tmp_path / "theirs.pdparams")
    assert report.dialect == "PaddleClas ResNet"
    for name, value in model.state_dict().items():
        assert paddle.equal_all(ours.state_dict()[name], value), name


def paddlevit_name(name):
    """Return PaddleViT's name of one of our ViT parameters."""
    for pattern, theirs in (
        (r"pos_embed", "position_embedding"),
        (r"patch_embed\.proj\.", "patch_embedding.patch_embedding."),
        (r"blocks\.(\d+)\.norm1\.", r"encoder.layers.\1.attn_norm."),
        (r"blocks\.(\d+)\.norm2\.", r"encoder.layers.\1.mlp_norm."),
        (r"blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.attn.out."),
        (r"blocks\.(\d+)\.", r"encoder.layers.\1."),
        (r"norm\.", "encoder.encoder_norm."),
        (r"head\.", "classifier."),
    ):
        if re.match(pattern, name):
            return re.sub(pattern, theirs, name, count=1)
    return name


def test_names_of_paddlevit_are_understood(tmp_path):
    model = randomise(build(VARIANTS["vit_tiny_digits"]))
    renamed = {paddlevit_name(name): value for name, value in model.state_dict().items()}
    ours, report = save_and_load(renamed, "vit_tiny_digits", tmp_path / "theirs.pdparams")
    assert report.dialect == "PaddleViT"
    for name, value in model.state_dict().items():
        assert paddle.equal_all(ours.state_dict()[name], value), name
