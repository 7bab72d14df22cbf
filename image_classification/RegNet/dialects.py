"""Parameter names of a RegNet in torchvision, PaddleClas and PaddleViT; ours are timm's."""

import re

from image_classification.model import Dialect


def _from_one(tensors, own_names):
    """torchvision and PaddleViT count blocks, and PaddleViT stages, from zero; ours count from one.

    The last convolution of PaddleViT's blocks has a bias, which only moves what the BatchNorm after it subtracts.
    """
    renamed = {}
    for name, value in tensors.items():
        block = re.fullmatch(r"s(\d+)\+(\d)\.b(\d+)\+1\.(.*)", name)
        renamed[f"s{int(block[1]) + int(block[2])}.b{int(block[3]) + 1}.{block[4]}" if block else name] = value
    for name in [name for name in renamed if name.endswith(".conv3.conv.bias")]:
        mean = name.replace("conv.bias", "bn._mean")
        renamed[mean] = renamed[mean] - renamed.pop(name)
    return renamed


DIALECTS = (
    Dialect(
        "torchvision RegNet",
        r"trunk_output\.block1\.block1-0\.f\.a\.0\.weight",
        (
            (r"stem\.0\.(.*)", r"stem.conv.\1"),
            (r"stem\.1\.(.*)", r"stem.bn.\1"),
            *(
                (rf"trunk_output\.block(\d+)\.block\d+-(\d+)\.{theirs}\.(.*)", rf"s\1+0.b\2+1.{ours}.\3")
                for theirs, ours in (
                    (r"f\.a\.0", "conv1.conv"), (r"f\.a\.1", "conv1.bn"), (r"f\.b\.0", "conv2.conv"),
                    (r"f\.b\.1", "conv2.bn"), (r"f\.se", "se"), (r"f\.c\.0", "conv3.conv"), (r"f\.c\.1", "conv3.bn"),
                    (r"proj\.0", "downsample.conv"), (r"proj\.1", "downsample.bn"),
                )
            ),
            (r"fc\.(.*)", r"head.fc.\1"),
        ),
        _from_one,
    ),
    Dialect(
        "PaddleClas RegNet",
        r"s1_b1\.conv0\._conv\.weight",
        (
            (r"conv\._conv\.(.*)", r"stem.conv.\1"),
            (r"conv\._batch_norm\.(.*)", r"stem.bn.\1"),
            *(
                (rf"s(\d+)_b(\d+)\.{theirs}\.{their_layer}\.(.*)", rf"s\1.b\2.{ours}.{our_layer}.\3")
                for theirs, ours in (
                    ("conv0", "conv1"), ("conv1", "conv2"), ("conv2", "conv3"), ("short", "downsample"),
                )
                for their_layer, our_layer in (("_conv", "conv"), ("_batch_norm", "bn"))
            ),
            (r"out\.(.*)", r"head.fc.\1"),
        ),
    ),
    Dialect(
        "PaddleViT RegNet",
        r"stages\.0\.blocks\.0\.conv1\.weight",
        (
            (r"stem\.0\.(.*)", r"stem.conv.\1"),
            (r"stem\.1\.(.*)", r"stem.bn.\1"),
            *(
                (rf"stages\.(\d+)\.blocks\.(\d+)\.{theirs}\.(.*)", rf"s\1+1.b\2+1.{ours}.\3")
                for theirs, ours in (
                    ("conv1", "conv1.conv"), ("bn1", "conv1.bn"), ("conv2", "conv2.conv"), ("bn2", "conv2.bn"),
                    ("conv3", "conv3.conv"), ("bn3", "conv3.bn"), (r"se\.conv1_1x1", "se.fc1"),
                    (r"se\.conv2_1x1", "se.fc2"), (r"downsample\.conv1x1", "downsample.conv"),
                    (r"downsample\.bn", "downsample.bn"),
                )
            ),
            (r"head\.2\.(.*)", r"head.fc.\1"),
        ),
        _from_one,
    ),
)  # fmt: skip
