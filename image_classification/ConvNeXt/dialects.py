"""Parameter names of a ConvNeXt in its original repository and torchvision; ours are timm's."""

import re

from image_classification.model import Dialect


def _torchvision_stages(tensors, own_names):
    """torchvision counts stages (1, 3, 5, 7) and what is between them (2, 4, 6); its layer scales are [dim, 1, 1]."""
    renamed = {}
    for name, value in tensors.items():
        stage = re.fullmatch(r"stages\.(\d+)\.(.*)", name)
        name = f"stages.{int(stage[1]) // 2}.{stage[2]}" if stage else name
        renamed[name] = value.reshape(-1) if name.endswith(".gamma") else value
    return renamed


DIALECTS = (
    Dialect(
        "original ConvNeXt",
        r"downsample_layers\.0\.0\.weight",
        (
            (r"downsample_layers\.0\.(.*)", r"stem.\1"),
            (r"downsample_layers\.(\d+)\.(.*)", r"stages.\1.downsample.\2"),
            (r"stages\.(\d+)\.(\d+)\.dwconv\.(.*)", r"stages.\1.blocks.\2.conv_dw.\3"),
            (r"stages\.(\d+)\.(\d+)\.pwconv(\d)\.(.*)", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
            (r"stages\.(\d+)\.(\d+)\.(.*)", r"stages.\1.blocks.\2.\3"),
            (r"norm\.(.*)", r"head.norm.\1"),
            (r"head\.(.*)", r"head.fc.\1"),
        ),
    ),
    Dialect(
        "torchvision ConvNeXt",
        r"features\.1\.0\.layer_scale",
        (
            (r"features\.0\.(.*)", r"stem.\1"),
            (r"features\.(\d+)\.(\d+)\.layer_scale", r"stages.\1.blocks.\2.gamma"),
            (r"features\.(\d+)\.(\d+)\.block\.0\.(.*)", r"stages.\1.blocks.\2.conv_dw.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.2\.(.*)", r"stages.\1.blocks.\2.norm.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.3\.(.*)", r"stages.\1.blocks.\2.mlp.fc1.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.5\.(.*)", r"stages.\1.blocks.\2.mlp.fc2.\3"),
            (r"features\.(\d+)\.(.*)", r"stages.\1.downsample.\2"),
            (r"classifier\.0\.(.*)", r"head.norm.\1"),
            (r"classifier\.2\.(.*)", r"head.fc.\1"),
        ),
        _torchvision_stages,
    ),
)
