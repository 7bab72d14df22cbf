"""Parameter names of a DeiT in PaddleViT; ours are timm's."""

from image_classification.transformer import PADDLEVIT

DIALECTS = (PADDLEVIT,)
