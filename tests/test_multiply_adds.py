"""Multiply-adds of every variant: counted from the model, equal to what its publisher says."""

import math

import paddle
import pytest

from image_classification.config import load_config
from image_classification.multiply_adds import count_multiply_adds
from image_classification.transformer import Attention
from tests.helpers.model_zoo import CONFIGS, build, builder, by_cost, published

# billions, rounded to three digits: `_ops` in the metadata of torchvision's weights, norms not among them
TORCHVISION = {
    "alexnet": 0.714, "vgg11": 7.609, "vgg11_bn": 7.609, "vgg13": 11.308, "vgg16": 15.47, "vgg19": 19.632,
    "resnet18": 1.814, "resnet34": 3.664, "resnet50": 4.089, "resnet101": 7.801, "resnet152": 11.514,
    "resnext50_32x4d": 4.23, "resnext101_32x8d": 16.414, "resnext101_64x4d": 15.46, "wide_resnet50_2": 11.398,
    "wide_resnet101_2": 22.753, "vit_base_patch16_224": 17.564, "vit_base_patch32_224": 4.409,
    "vit_large_patch16_224": 61.555, "vit_large_patch32_224": 15.378, "vit_huge_patch14_224": 167.295,
    "convnext_tiny": 4.456, "convnext_small": 8.684, "convnext_base": 15.355, "convnext_large": 34.361,
    "swin_tiny_patch4_window7_224": 4.491, "swin_small_patch4_window7_224": 8.741,
    "swin_base_patch4_window7_224": 15.431,
}  # fmt: skip


def published_figure(path, kind="gmacs"):
    """Return the billions of multiply-adds that a variant's publisher states, None where there is no figure."""
    return published().get(path.stem, {}).get(kind)


def head_beyond_published(path):
    """Return by how much the head of 1000 classes needs more multiply-adds than the head of the published figure."""
    classes = published()[path.stem].get("gmacs_classes", 1000)
    with paddle.LazyGuard():
        model = build(path)
    heads = tuple(f"{name}.weight" for name in model.head_names)
    whole = sum(math.prod(value.shape) for name, value in model.named_parameters() if name in heads)
    return whole * (1 - classes / 1000)


@pytest.mark.parametrize("path", by_cost([path for path in CONFIGS if published_figure(path)], fast=1))
def test_published_multiply_adds_are_the_counted_ones(path):
    size = load_config([f"-cfg={path}"], builder(path.parents[1])).DATA.IMAGE_SIZE
    counted = count_multiply_adds(lambda: build(path), size)
    # half a unit of the last published digit
    assert abs((counted.total_with_norms - head_beyond_published(path)) / 1e9 - published_figure(path)) <= 0.005
    if path.stem in TORCHVISION:
        assert abs(counted.total / 1e9 - TORCHVISION[path.stem]) <= 0.0005 + 1e-9  # 1e-9: 0.0005 is no binary number


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if published_figure(path, "gmacs_deploy")], ids=lambda path: path.stem
)
def test_published_multiply_adds_of_a_folded_form_are_the_counted_ones(path):
    size = load_config([f"-cfg={path}"], builder(path.parents[1])).DATA.IMAGE_SIZE
    counted = count_multiply_adds(lambda: build(path, deploy=True), size)
    assert abs(counted.total / 1e9 - published_figure(path, "gmacs_deploy")) <= 0.005  # half a unit of the last digit


def test_torchvisions_figures_belong_to_variants():
    assert TORCHVISION.keys() <= {path.stem for path in CONFIGS if published_figure(path)}


def test_convolution_linear_and_norm_are_counted_by_hand():
    def layers():
        return paddle.nn.Sequential(
            paddle.nn.Conv2D(4, 6, (3, 5), stride=2, padding=(1, 2), groups=2),  # [4, 8, 8] to [6, 4, 4]
            paddle.nn.BatchNorm2D(6),
            paddle.nn.Conv2D(6, 6, 3, padding=1, groups=6),
            paddle.nn.Flatten(),
            paddle.nn.LayerNorm(96),
            paddle.nn.Linear(96, 10),
        )

    counted = count_multiply_adds(layers, 8, channels=4)
    assert counted.convolutions == 6 * 4 * 4 * (2 * 3 * 5) + 6 * 4 * 4 * (1 * 3 * 3)
    assert (counted.linears, counted.attention) == (96 * 10, 0)
    assert (counted.batch_norm, counted.layer_norm) == (96, 96)
    assert counted.total_with_norms == counted.total + 5 * 96 + 2 * 96


def test_attention_counts_scores_and_mixture_of_all_heads():
    class Rows(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.attention = Attention(dim=12, num_heads=3)

        def forward(self, images):  # [1, 1, 12, 12] as 12 tokens
            return self.attention(images.squeeze(1))

    counted = count_multiply_adds(Rows, 12, channels=1)
    assert counted.linears == 12 * 12 * 36 + 12 * 12 * 12
    assert counted.attention == 2 * 3 * 12 * 12 * 4  # scores and mixture: heads x tokens x tokens x width of a head
