"""Position embeddings for another image size."""

import math

import numpy as np

CUBIC = -0.5  # Keys' parameter as Pillow, and PyTorch with antialias=True, have it


def resize_position_embedding(embedding, grid, num_prefix_tokens):
    """Return [1, N, C] float32: the grid part resampled to (rows, columns), antialiased bicubic, prefix tokens kept.

    Equals timm's `resample_abs_pos_embed`. None where the embedding, [1, N, C], is not of a square grid.
    """
    places = embedding.shape[1] - num_prefix_tokens if embedding.ndim == 3 else -1
    if places < 1 or math.isqrt(places) ** 2 != places:
        return None
    prefix, old = np.split(np.asarray(embedding, np.float32), [num_prefix_tokens], axis=1)
    side, (rows, columns) = math.isqrt(places), grid
    old = old.reshape(side, side, -1).astype(np.float64)
    new = np.einsum("yh,xw,hwc->yxc", _resampling(side, rows), _resampling(side, columns), old, optimize=True)
    return np.concatenate([prefix, new.reshape(1, rows * columns, -1).astype(np.float32)], axis=1)


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
