"""Operators whose half CPU kernels, forward and backward, exist and only move or convert data: they need no float32."""

from .op_names import words

EXACT = words(
    """
    cast assign full full_like empty empty_like zeros ones reshape transpose squeeze unsqueeze flatten shape numel
    """
)
