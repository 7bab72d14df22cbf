"""Parameter names of a DeiT in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleViT",
        r"encoder\.layers\.0\.attn_norm\.weight",
        (
            (r"position_embedding", "pos_embed"),
            (r"cls_token", "cls_token"),
            (r"(?:patch_embedding\.)(?:patch_embedding)\.(.*)", r"patch_embed.proj.\1"),
            (r"patch_embedding\.position_embeddings", "pos_embed"),
            (r"patch_embedding\.cls_token", "cls_token"),
            (r"encoder\.layers\.(\d+)\.attn_norm\.(.*)", r"blocks.\1.norm1.\2"),
            (r"encoder\.layers\.(\d+)\.mlp_norm\.(.*)", r"blocks.\1.norm2.\2"),
            (r"encoder\.layers\.(\d+)\.attn\.out\.(.*)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.(\d+)\.(.*)", r"blocks.\1.\2"),
            (r"encoder\.(?:encoder_)?norm\.(.*)", r"norm.\1"),
            (r"classifier\.(.*)", r"head.\1"),
            (r"classifier_dist\.(.*)", r"head_dist.\1"),
        ),
    ),
)
