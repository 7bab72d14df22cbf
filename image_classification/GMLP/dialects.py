"""Parameter names of a gMLP in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT gMLP",
        r"mixer_layers\.0\.mlp_channels\.gate\.proj\.weight",
        (
            (r"patch_embed\.patch_embed\.(.*)", r"stem.proj.\1"),
            (r"mixer_layers\.(.*)", r"blocks.\1"),
        ),
    ),
)
