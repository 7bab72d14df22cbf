"""Parameter names of an XCiT in PaddleViT, which are the authors' own; ours are timm's."""

import re

import numpy as np

from image_classification.model import Dialect


def split_class_attention(tensors, own_names):
    """Divide the packed query, key and value of the class token's blocks, of either layout, among three layers."""
    result = {}
    for name, value in tensors.items():
        match = re.fullmatch(r"(cls_attn_blocks\.\d+\.attn)\.qkv\.(weight|bias)", name)
        if not match:
            result[name] = value
            continue
        value = np.asarray(value)  # one number is an optimizer's for the whole layer
        parts = np.split(value, 3, axis=int(np.argmax(value.shape))) if value.size > 1 else [value] * 3
        result |= {f"{match[1]}.{part}.{match[2]}": array for part, array in zip("qkv", parts, strict=True)}
    return result


DIALECTS = (
    Dialect(
        "PaddleViT XCiT",
        r"pos_embeder\.token_projection\.weight",
        ((r"pos_embeder\.(.*)", r"pos_embed.\1"),),
        split_class_attention,
    ),
)
