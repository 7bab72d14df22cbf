"""Parameter names of a ResMLP in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT ResMLP",
        r"mixer_layers\.0\.linear_tokens\.weight",
        (
            (r"patch_embed\.patch_embed\.(.*)", r"stem.proj.\1"),
            (r"mixer_layers\.(.*)", r"blocks.\1"),
        ),
    ),
)
