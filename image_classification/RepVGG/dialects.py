"""Parameter names of a RepVGG in its authors' code and in PaddleClas, ours are timm's; and how branches are folded."""

import numpy as np

from image_classification.model import Dialect

EPSILON = 1e-5  # of every BatchNorm
FOLDED = ".reparam_conv.weight"

STAGES = {r"stage0": "stem"} | {rf"stage{i}\.(?P<block>\d+)": rf"stages.{i - 1}.\g<block>" for i in range(1, 5)}
LAYERS = {"rbr_dense": "conv_kxk", "rbr_1x1": "conv_1x1", "rbr_identity": "identity", r"se\.down": "attn.fc1",
          r"se\.up": "attn.fc2"}  # fmt: skip

DIALECTS = (
    Dialect(
        "RepVGG of its authors",
        r"stage0\.rbr_dense\.conv\.weight",
        (
            *((rf"{theirs}\.{layer}\.(?P<rest>.*)", rf"{ours}.{name}.\g<rest>")
              for theirs, ours in STAGES.items() for layer, name in LAYERS.items()),
            (r"linear\.(.*)", r"head.fc.\1"),
        ),
    ),
)  # fmt: skip


def fold(tensors, own_names):
    """Return the weights of a model that trained as those of its plain form, in float32, summed in float64."""
    for block in [name.removesuffix(FOLDED) for name in own_names if name.endswith(FOLDED)]:
        kernel, bias = _without_norm(tensors, f"{block}.conv_kxk.bn", tensors.pop(f"{block}.conv_kxk.conv.weight"))
        small, shift = _without_norm(tensors, f"{block}.conv_1x1.bn", tensors.pop(f"{block}.conv_1x1.conv.weight"))
        kernel[:, :, 1:2, 1:2] += small
        bias += shift
        if f"{block}.identity.weight" in tensors:
            channels = range(len(kernel))
            scale, shift = _without_norm(tensors, f"{block}.identity", np.ones([len(kernel), 1, 1, 1]))
            kernel[channels, [channel % kernel.shape[1] for channel in channels], 1, 1] += scale[:, 0, 0, 0]
            bias += shift
        tensors[f"{block}.reparam_conv.weight"] = kernel.astype(np.float32)
        tensors[f"{block}.reparam_conv.bias"] = bias.astype(np.float32)
    return tensors


def _without_norm(tensors, norm, kernel):
    """Return the kernel and bias that alone do what a convolution without bias and its BatchNorm do."""
    weight, bias, mean, variance = (
        np.asarray(tensors.pop(f"{norm}.{name}"), np.float64) for name in ("weight", "bias", "_mean", "_variance")
    )
    scale = weight / np.sqrt(variance + EPSILON)
    return np.asarray(kernel, np.float64) * scale.reshape(-1, 1, 1, 1), bias - mean * scale


DEPLOYED = tuple(
    dialect._replace(name=f"{dialect.name}, folded", finish=fold)
    for dialect in (Dialect("RepVGG that trained", r"stem\.conv_kxk\.conv\.weight", ()), *DIALECTS)
)
