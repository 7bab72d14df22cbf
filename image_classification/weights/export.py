"""A model's float32 weights under the names and in the layout of timm and torchvision, or as Paddle has them."""

import numpy as np

from ..runtime import UserError
from .load import linear_weights, transpose_linears

LAYOUTS = ("torch", "paddle")


def export_tensors(model, layout):
    """Return {name: float32 array} that `load_state_dict(strict=True)` of the original accepts, or Paddle's own state.

    Args:
        layout: "torch" ([out, in] linear weights, running_mean, running_var, num_batches_tracked) or "paddle".
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout {layout!r}: allowed are {', '.join(LAYOUTS)}")
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    if layout == "paddle":
        return tensors
    return torch_tensors(tensors, linear_weights(model))


def torch_tensors(tensors, linears):
    """Return Paddle's own state as PyTorch has it; `linears` are the names of :func:`linear_weights`."""
    exported = {}
    for name, value in transpose_linears(linears, tensors).items():
        if name.endswith("._mean"):
            exported[name.removesuffix("_mean") + "num_batches_tracked"] = np.array(0, np.int64)
        renamed = name.replace("._mean", ".running_mean").replace("._variance", ".running_var")
        exported[renamed] = np.asarray(value, order="C")
    return exported
