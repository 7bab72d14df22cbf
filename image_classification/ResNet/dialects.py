"""Parameter names of a ResNet in PaddleClas; ours are torchvision's, and timm's are the same."""

import re

from image_classification.model import Dialect


def _paddleclas_resnet(tensors, own_names):
    """PaddleClas numbers its blocks through; ours restart in each stage."""
    stages = list(dict.fromkeys(re.findall(r"(layer\d+\.\d+)\.conv1\.weight", "\n".join(own_names))))
    renamed = {}
    for name, value in tensors.items():
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block and int(block[1]) < len(stages):
            name = f"{stages[int(block[1])]}.{block[2]}"
        renamed[name] = value
    return renamed


DIALECTS = (
    Dialect(
        "PaddleClas ResNet",
        r"stem\.0\.conv\.weight",
        (
            (r"stem\.0\.conv\.(.*)", r"conv1.\1"),
            (r"stem\.0\.bn\.(.*)", r"bn1.\1"),
            (r"(blocks\.\d+)\.conv0\.conv\.(.*)", r"\1.conv1.\2"),
            (r"(blocks\.\d+)\.conv0\.bn\.(.*)", r"\1.bn1.\2"),
            (r"(blocks\.\d+)\.conv1\.conv\.(.*)", r"\1.conv2.\2"),
            (r"(blocks\.\d+)\.conv1\.bn\.(.*)", r"\1.bn2.\2"),
            (r"(blocks\.\d+)\.conv2\.conv\.(.*)", r"\1.conv3.\2"),
            (r"(blocks\.\d+)\.conv2\.bn\.(.*)", r"\1.bn3.\2"),
            (r"(blocks\.\d+)\.short\.conv\.(.*)", r"\1.downsample.0.\2"),
            (r"(blocks\.\d+)\.short\.bn\.(.*)", r"\1.downsample.1.\2"),
        ),
        _paddleclas_resnet,
    ),
)
