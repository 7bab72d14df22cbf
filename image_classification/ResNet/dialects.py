"""Parameter names of a ResNet in PaddleClas; ours are torchvision's, and timm's are the same."""

import re

from image_classification.model import Dialect


def _paddleclas_resnet(tensors, own_names):
    """PaddleClas numbers its blocks through; ours restart in each stage.

    Its deep stem is three pairs, ours a sequence with activations in it, of which the last BatchNorm is no part. A pool
    before the convolution of a shortcut has a number here.
    """
    names = "\n".join(own_names)
    stages = list(dict.fromkeys(re.findall(r"(layer\d+\.\d+)\.conv1\.weight", names)))
    has_deep_stem, pooled = "conv1.0.weight" in own_names, re.search(r"downsample\.2\.", names) is not None
    stem = {"0.conv": "conv1", "0.bn": "bn1"}
    if has_deep_stem:
        stem = {"0.conv": "conv1.0", "0.bn": "conv1.1", "1.conv": "conv1.3", "1.bn": "conv1.4", "2.conv": "conv1.6",
                "2.bn": "bn1"}  # fmt: skip
    renamed = {}
    for name, value in tensors.items():
        in_stem, in_block = re.match(r"stem\.(\d+\.\w+)\.(.*)", name), re.match(r"blocks\.(\d+)\.(.*)", name)
        if in_stem and in_stem[1] in stem:
            name = f"{stem[in_stem[1]]}.{in_stem[2]}"
        elif in_block and int(in_block[1]) < len(stages):
            rest = in_block[2].replace("short.conv", f"downsample.{int(pooled)}")
            name = f"{stages[int(in_block[1])]}.{rest.replace('short.bn', f'downsample.{1 + pooled}')}"
        renamed[name] = value
    return renamed


DIALECTS = (
    Dialect(
        "PaddleClas ResNet",
        r"stem\.0\.conv\.weight",
        (
            (r"(blocks\.\d+)\.conv0\.conv\.(.*)", r"\1.conv1.\2"),
            (r"(blocks\.\d+)\.conv0\.bn\.(.*)", r"\1.bn1.\2"),
            (r"(blocks\.\d+)\.conv1\.conv\.(.*)", r"\1.conv2.\2"),
            (r"(blocks\.\d+)\.conv1\.bn\.(.*)", r"\1.bn2.\2"),
            (r"(blocks\.\d+)\.conv2\.conv\.(.*)", r"\1.conv3.\2"),
            (r"(blocks\.\d+)\.conv2\.bn\.(.*)", r"\1.bn3.\2"),
        ),
        _paddleclas_resnet,
    ),
)
