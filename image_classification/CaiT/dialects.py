"""Parameter names of a CaiT in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT CaiT",
        r"patch_embed\.patch_embed\.weight",
        ((r"patch_embed\.patch_embed\.(.*)", r"patch_embed.proj.\1"),),
    ),
)
