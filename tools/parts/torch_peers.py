"""Import torchvision and timm where torchvision's compiled operators do not load; in an environment with PyTorch.

Its wheels are built for CUDA, so beside a PyTorch for the CPU the operators are not registered and the import fails. No
model uses one of them: they need only be declared.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError:
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d", "qroi_align"):
        OPERATORS.define(f"{name}(Tensor x) -> Tensor")
        if name not in ("nms", "qnms", "qroi_align"):
            OPERATORS.define(f"_{name}_backward(Tensor x) -> Tensor")
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left
    import torchvision

import timm

__all__ = ["timm", "torch", "torchvision"]
