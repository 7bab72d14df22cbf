"""Parameter names of AlexNet in `paddle.vision` and PaddleClas; ours are torchvision's."""

import numpy as np

from image_classification.model import Dialect


def _halve_after_dropout(tensors, own_names):
    """Their dropout (p = 0.5) halves the activations at inference; ours doubles them in training: halve the weights."""
    for name in ("classifier.1.weight", "classifier.4.weight"):
        tensors[name] = tensors[name] * np.float32(0.5)
    return tensors


DIALECTS = (
    Dialect(
        "Paddle AlexNet",
        r"_conv1\._conv\.weight",
        (
            (r"_conv1\._conv\.(.*)", r"features.0.\1"),
            (r"_conv2\._conv\.(.*)", r"features.3.\1"),
            (r"_conv3\.(.*)", r"features.6.\1"),
            (r"_conv4\.(.*)", r"features.8.\1"),
            (r"_conv5\._conv\.(.*)", r"features.10.\1"),
            (r"_fc6\.(.*)", r"classifier.1.\1"),
            (r"_fc7\.(.*)", r"classifier.4.\1"),
            (r"_fc8\.(.*)", r"classifier.6.\1"),
        ),
        _halve_after_dropout,
    ),
)
