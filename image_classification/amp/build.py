"""From plain values to a Precision object."""

from .precision import Precision


def build_precision(mode="fp32", dtype=None, device="cpu", options=None, clip_grad_norm=None, reduction=None):
    """Return the Precision of a mode.

    Raises:
        ValueError: unknown mode.
    """
    if mode != "fp32":
        raise ValueError(f"unknown precision mode {mode!r}")
    return Precision(device=device, clip_grad_norm=clip_grad_norm, reduction=reduction, **(options or {}))
