"""Parameter names of a ConvMixer in PaddleViT and in its authors' code, one chain of layers; ours are timm's."""

import re

from image_classification.model import Dialect

FIRST_BLOCK = 3  # after the convolution, activation and norm of the stem
LAYER = re.compile(r"(\d+)\.(.+)")


def divide(tensors, own_names):
    """Return the tensors with numbers of layers of the chain as stem, blocks and head."""
    blocks = len({name.split(".")[1] for name in own_names if name.startswith("blocks.")})
    divided = {}
    for name, value in tensors.items():
        number, rest = LAYER.fullmatch(name).groups()
        index = int(number) - FIRST_BLOCK
        place = f"stem.{number}" if index < 0 else f"blocks.{index}" if index < blocks else "head"
        divided[f"{place}.{rest}"] = value
    return divided


DIALECTS = (Dialect("ConvMixer of its authors", r"3\.0\.fn\.0\.weight", (), divide),)
