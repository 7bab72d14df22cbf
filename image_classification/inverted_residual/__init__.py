"""Inverted residual blocks with squeeze-excite, and the network of stages that is made of them, with timm's names.

MobileNetV2's block (Sandler et al. 2018, https://arxiv.org/abs/1801.04381) widens by a 1x1 convolution, filters each
channel by itself, and narrows again without an activation.
"""

from .blocks import ACTIVATIONS, BLOCKS, Residual, Style, classifier, round_channels
from .stages import InvertedResidualNet

__all__ = ["ACTIVATIONS", "BLOCKS", "InvertedResidualNet", "Residual", "Style", "classifier", "round_channels"]
