"""Parameter names of a CrossViT in its original repository and in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "original CrossViT",
        r"pos_embed\.0",
        (
            (r"(pos_embed|cls_token)\.(\d)", r"\1_\2"),
            (r"(.*\.attn)\.out\.(.*)", r"\1.proj.\2"),  # PaddleViT
        ),
    ),
)
