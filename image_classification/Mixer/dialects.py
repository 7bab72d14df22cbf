"""Parameter names of an MLP-Mixer in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT Mixer",
        r"mixer_layers\.0\.norm1\.weight",
        (
            (r"patch_embed\.patch_embed\.(.*)", r"stem.proj.\1"),
            (r"mixer_layers\.(.*)", r"blocks.\1"),
        ),
    ),
)
