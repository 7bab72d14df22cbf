"""Where a model looks, against the formulas of the papers."""

import numpy as np
import paddle
import pytest

from image_classification import explain, zoo
from tests.helpers.model_tools import VARIANT


def test_grad_cam_of_one_linear_head_is_the_weighted_feature_map():
    """With pooling and one linear layer the gradient is the class's weight vector (Zhou et al. 2016)."""
    paddle.seed(0)  # some weights give a class that looks nowhere
    model, config = zoo.load_model(VARIANT)
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    classes = np.array([4, 7])
    x = images
    for block in model.sequential_blocks()[:-1]:
        x = block.run(x)
    weights = model.fc.weight.numpy()[:, classes].T  # [B, C]
    expected = np.maximum((weights[:, :, None, None] * x.numpy()).sum(1), 0)
    low, high = expected.min((1, 2), keepdims=True), expected.max((1, 2), keepdims=True)
    found = explain.heatmap(model, images, paddle.to_tensor(classes)).numpy()
    np.testing.assert_allclose(found, (expected - low) / (high - low), atol=1e-5)


def test_attention_rollout_of_one_block_is_its_mean_attention():
    paddle.seed(0)
    model, _ = zoo.load_model("vit_tiny_digits", options=["MODEL.DEPTH=1"])
    images = paddle.randn([2, 3, 32, 32])
    attention = model.blocks[0].attn
    with paddle.no_grad():
        packed = attention.qkv(model.blocks[0].norm1(model.embed(images))).numpy().reshape(2, 17, 3, 4, 16)
    query, key = (packed[:, :, i].transpose(0, 2, 1, 3) for i in (0, 1))
    scores = query @ key.transpose(0, 1, 3, 2) / 4.0  # sqrt(16)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = weights.mean(1)[:, 0, 1:].reshape(2, 4, 4)  # from the class token to the patches
    low, high = expected.min((1, 2), keepdims=True), expected.max((1, 2), keepdims=True)
    found = explain.heatmap(model, images, paddle.to_tensor([0, 0])).numpy()
    np.testing.assert_allclose(found, (expected - low) / (high - low), atol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_digits", "swin_tiny_patch4_window7_224", "alexnet"])
def test_heatmap_is_a_map_between_0_and_1_for_each_kind_of_model(name):
    options = ["MODEL.EMBED_DIM=12", "MODEL.DEPTHS=[1, 1]", "MODEL.NUM_HEADS=[1, 2]"] if "swin" in name else []
    model, config = zoo.load_model(name, options=options)
    side = 64 if name == "alexnet" else config.DATA.IMAGE_SIZE
    maps = explain.heatmap(model, paddle.randn([2, 3, side, side]), paddle.to_tensor([0, 1])).numpy()
    assert maps.ndim == 3 and maps.shape[0] == 2 and maps.min() >= 0 and maps.max() <= 1
