"""EfficientNet (Tan & Le 2019, https://arxiv.org/abs/1905.11946) and EfficientNetV2 (Tan & Le 2021,
https://arxiv.org/abs/2104.00298), with timm's parameter names.

B0 is a list of stages; B1 to B8 multiply its channels and depths by one factor each. V2 is another list, whose first
stages use fused blocks. The weights that come from TensorFlow need its padding and its epsilon of 1e-3
(MODEL.SAME_PADDING, MODEL.NORM_EPSILON).
"""

from image_classification.inverted_residual import BLOCKS, InvertedResidualNet, Style, classifier, round_channels
from image_classification.layers import Dropout, conv_norm

STAGES = (
    "ds_r1_k3_s1_c16_se0.25",
    "ir_r2_k3_s2_e6_c24_se0.25",
    "ir_r2_k5_s2_e6_c40_se0.25",
    "ir_r3_k3_s2_e6_c80_se0.25",
    "ir_r3_k5_s1_e6_c112_se0.25",
    "ir_r4_k5_s2_e6_c192_se0.25",
    "ir_r1_k3_s1_e6_c320_se0.25",
)  # table 1 of the paper


class EfficientNet(InvertedResidualNet):
    """Stages of inverted residuals, a 1x1 convolution to `head_channels`, average pooling and the classifier.

    The defaults are EfficientNet-B0.
    """

    head_prefixes = ("conv_head.", "bn2.", "classifier.")

    def __init__(self, stages: tuple[str, ...] = STAGES, width_factor: float = 1.0, depth_factor: float = 1.0,
                 stem_channels: int = 32, head_channels: int = 1280, in_channels: int = 3, num_classes: int = 1000,
                 same_padding: bool = False, norm_epsilon: float = 1e-5, dropout: float = 0.2, drop_path: float = 0.2):
        style = Style(activation="silu", same_padding=same_padding, norm_epsilon=norm_epsilon)
        super().__init__(
            in_channels, num_classes, round_channels(stem_channels * width_factor), stages, style, drop_path, BLOCKS,
            width_factor, depth_factor,
        )  # fmt: skip
        head_channels = round_channels(head_channels * width_factor)
        self.conv_head = style.conv(self.out_channels, head_channels, 1)
        self.bn2 = style.norm(head_channels)
        self.dropout = Dropout(dropout)
        self.classifier = classifier(head_channels, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        x = conv_norm(x, self.conv_head, self.bn2, self.act)
        return self.classifier(self.dropout(x.mean(axis=[2, 3])))


build_model = EfficientNet  # its arguments are the MODEL section of a YAML file
