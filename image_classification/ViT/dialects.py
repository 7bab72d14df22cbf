"""Parameter names of a ViT in torchvision and PaddleViT; ours are timm's."""

from image_classification.model import Dialect
from image_classification.transformer import PADDLEVIT

DIALECTS = (
    Dialect(
        "torchvision ViT",
        r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",
        (
            (r"class_token", "cls_token"),
            (r"encoder\.pos_embedding", "pos_embed"),
            (r"conv_proj\.(.*)", r"patch_embed.proj.\1"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.ln_(\d)\.(.*)", r"blocks.\1.norm\2.\3"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(.*)", r"blocks.\1.attn.qkv.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(.*)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.(.*)", r"blocks.\1.mlp.fc1.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.(.*)", r"blocks.\1.mlp.fc2.\2"),
            (r"encoder\.ln\.(.*)", r"norm.\1"),
            (r"heads\.head\.(.*)", r"head.\1"),
        ),
    ),
    PADDLEVIT,
)
