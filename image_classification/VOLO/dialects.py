"""Parameter names of a VOLO in PaddleViT; ours are timm's, which are the authors'."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT VOLO",
        r"patch_embed\.stem\.0\.weight",
        (
            (r"patch_embed\.stem\.(.*)", r"patch_embed.conv.\1"),
            (r"model\.(.*)", r"network.\1"),
            (r"post_model\.(.*)", r"post_network.\1"),
        ),
    ),
)
