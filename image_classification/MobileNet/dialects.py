"""Parameter names of a PP-LCNet in PaddleClas; ours are timm's."""

import re

import numpy as np

from image_classification.model import Dialect

KEPT = 0.8  # of the head's features by its dropout, PaddleClas's default


def _paddleclas_lcnet(tensors, own_names):
    """PaddleClas has its blocks in five stages, ours are in six; its 1x1 convolution of the head has no bias.

    Its dropout scales when it is off, ours when it is on: the factor becomes part of the classifier's weight.
    """
    ours = re.findall(r"(blocks\.\d+\.\d+)\.conv_dw\.weight", "\n".join(own_names))
    found = [(name, re.match(r"(blocks\d\.\d)\.(.*)", name)) for name in tensors]
    renumbered = dict(zip(sorted({block[1] for _, block in found if block}), ours, strict=False))
    renamed = {f"{renumbered[block[1]]}.{block[2]}" if block else name: tensors[name] for name, block in found}
    if "conv_head.bias" in own_names:
        renamed.setdefault("conv_head.bias", np.zeros(len(renamed["conv_head.weight"]), np.float32))
    renamed["classifier.weight"] = renamed["classifier.weight"] * np.float32(KEPT)
    return renamed


DIALECTS = (
    Dialect(
        "PaddleClas PP-LCNet",
        r"blocks2\.0\.dw_conv\.conv\.weight",
        (
            (r"conv1\.conv\.(.*)", r"conv_stem.\1"),
            (r"conv1\.bn\.(.*)", r"bn1.\1"),
            (r"(blocks\d\.\d)\.dw_conv\.conv\.(.*)", r"\1.conv_dw.\2"),
            (r"(blocks\d\.\d)\.dw_conv\.bn\.(.*)", r"\1.bn1.\2"),
            (r"(blocks\d\.\d)\.pw_conv\.conv\.(.*)", r"\1.conv_pw.\2"),
            (r"(blocks\d\.\d)\.pw_conv\.bn\.(.*)", r"\1.bn2.\2"),
            (r"(blocks\d\.\d)\.se\.conv1\.(.*)", r"\1.se.conv_reduce.\2"),
            (r"(blocks\d\.\d)\.se\.conv2\.(.*)", r"\1.se.conv_expand.\2"),
            (r"last_conv\.(.*)", r"conv_head.\1"),
            (r"fc\.(.*)", r"classifier.\1"),
        ),
        _paddleclas_lcnet,
    ),
)
