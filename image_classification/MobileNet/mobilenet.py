"""MobileNetV3 (Howard et al. 2019, https://arxiv.org/abs/1905.02244), with timm's parameter names.

It pools before the last 1x1 convolution, so that this costs one pixel instead of all, and has a squeeze-excite of cheap
functions: ReLU and a piecewise linear gate. Around the same head stand the blocks of MobileNetV4 (Qin et al. 2024,
https://arxiv.org/abs/2404.10518) and the separable convolutions of PP-LCNet (Cui et al. 2021,
https://arxiv.org/abs/2109.15099).
"""

from image_classification.inverted_residual import BLOCKS, InvertedResidualNet, Style, classifier
from image_classification.layers import Dropout

from .dialects import DIALECTS
from .universal import BLOCKS_V4

STAGES = (
    "ds_r1_k3_s1_c16_nre",
    "ir_r1_k3_s2_e4_c24_nre ir_r1_k3_s1_e3_c24_nre",
    "ir_r3_k5_s2_e3_c40_se0.25_nre",
    "ir_r1_k3_s2_e6_c80 ir_r1_k3_s1_e2.5_c80 ir_r2_k3_s1_e2.3_c80",
    "ir_r2_k3_s1_e6_c112_se0.25",
    "ir_r3_k5_s2_e6_c160_se0.25",
    "cn_r1_k1_s1_c960",
)  # table 1 of the paper: large


class MobileNet(InvertedResidualNet):
    """Stages of blocks, average pooling, a 1x1 convolution to `head_channels` and the classifier.

    The defaults are V3 large.
    """

    dialects = DIALECTS

    def __init__(self, stages: tuple[str, ...] = STAGES, width_factor: float = 1.0, stem_channels: int = 16,
                 head_channels: int = 1280, head_bias: bool = True, head_norm: bool = False,
                 activation: str = "hardswish", squeeze_activation: str | None = "relu", squeeze_divisor: int = 8,
                 in_channels: int = 3, num_classes: int = 1000, same_padding: bool = False, norm_epsilon: float = 1e-5,
                 dropout: float = 0.2, drop_path: float = 0.0, layer_scale: float | None = None):
        style = Style(
            activation=activation, same_padding=same_padding, norm_epsilon=norm_epsilon, gate="hardsigmoid",
            squeeze_activation=squeeze_activation, squeeze_expanded=True, squeeze_divisor=squeeze_divisor,
            layer_scale=layer_scale,
        )  # fmt: skip
        kinds = BLOCKS | BLOCKS_V4
        super().__init__(in_channels, num_classes, stem_channels, stages, style, drop_path, kinds, width_factor)
        self.conv_head = style.conv(self.out_channels, head_channels, 1, bias=head_bias)
        self.norm_head = style.norm(head_channels) if head_norm else None
        self.dropout = Dropout(dropout)
        self.classifier = classifier(head_channels, num_classes)
        self.head_prefixes = ("conv_head.", "norm_head.", "classifier.")

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        x = self.conv_head(x.mean(axis=[2, 3], keepdim=True))
        if self.norm_head is not None:
            x = self.norm_head(x)
        return self.classifier(self.dropout(self.act(x).flatten(1)))


build_model = MobileNet  # its arguments are the MODEL section of a YAML file
