"""Position embeddings for another image size."""

import math

import numpy as np

CUBIC = -0.5  # Keys' parameter as Pillow, and PyTorch with antialias=True, have it


def resize_position_embedding(embedding, num_tokens, num_prefix_tokens):
    """Return [1, num_tokens, C] float32: the grid part resampled (antialiased bicubic), the prefix tokens kept.

    Equals timm's `resample_abs_pos_embed`. Both grids are square.
    """
    prefix, grid = np.split(np.asarray(embedding, np.float32), [num_prefix_tokens], axis=1)
    old, new = math.isqrt(grid.shape[1]), math.isqrt(num_tokens - num_prefix_tokens)
    weights = _resampling(old, new)
    grid = grid.reshape(old, old, -1).astype(np.float64)
    grid = np.einsum("yh,xw,hwc->yxc", weights, weights, grid, optimize=True)
    return np.concatenate([prefix, grid.reshape(1, new * new, -1).astype(np.float32)], axis=1)


def _resampling(old, new):
    """Return the matrix [new, old] of one axis; rows sum to 1."""
    scale = old / new
    support = max(scale, 1.0)  # shrinking widens the filter: no aliasing
    centers = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old)[None, :] + 0.5 - centers[:, None]) / support
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * CUBIC - 4 * CUBIC
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    return weights / weights.sum(axis=1, keepdims=True)
