"""DeiT, the data-efficient ViT, plain and distilled (Touvron et al. 2021, https://arxiv.org/abs/2012.12877).

The plain one is a ViT with another recipe. The distilled one has a second token and a second head, which learns from
the teacher where there is one (TRAIN.DISTILLATION_TYPE), else like the first; logits are the mean of both. Parameter
names, epsilon and initialisation are timm's, the latter but for the patches, as in ViT.
Shapes use: B batch, N tokens (class and distillation token included), C = embed_dim.
"""

import paddle

from image_classification.encoder import Encoder
from image_classification.layers import TRUNC_NORMAL, linear
from image_classification.transformer import TransformerBlock

from .dialects import DIALECTS


class Deit(Encoder):
    """DeiT: an encoder; `distilled` gives it a second token, `dist_token`, with a head of its own, `head_dist`."""

    dialects = DIALECTS
    prefix = ("cls_token", "dist_token")
    token_init = TRUNC_NORMAL

    def __init__(self, num_classes: int, embed_dim: int, num_heads: int, mlp_ratio: float, distilled: bool,
                 dropout: float, attention_dropout: float, **options):
        def make_block(rate):
            return TransformerBlock(embed_dim, num_heads, mlp_ratio, True, dropout, attention_dropout, rate)

        super().__init__(make_block, num_classes=num_classes, embed_dim=embed_dim, class_token=True,
                         reg_tokens=int(distilled), no_embed_class=False, global_pool="token", fc_norm=False,
                         norm_epsilon=1e-6, dropout=dropout, **options)  # fmt: skip
        self.distilled = distilled
        if distilled:
            self.head_dist = linear(embed_dim, num_classes)
            self.head_names = ("head", "head_dist")

    def forward_head(self, x):
        """Return class logits, [B, num_classes] or those of both heads, for the last block's tokens [B, N, C]."""
        x = self.norm(x)
        if not self.distilled:
            return self.head(x[:, 0])
        logits = self.head(x[:, 0]), self.head_dist(x[:, 1])
        if self.separate_heads and self.training:
            return paddle.stack(logits, axis=1)
        return (logits[0] + logits[1]) / 2


def build_model(
    image_size: int = 224,
    patch_size: int = 16,
    in_channels: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_ratio: float = 4.0,
    distilled: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Deit:
    """Return a DeiT; the arguments are the MODEL section of a YAML file, and the defaults are DeiT-B/16."""
    return Deit(**locals())
