"""Positions for another image or window size."""

import math

import numpy as np

from ..model import RelativePositions

CUBIC = -0.5  # Keys' parameter as Pillow, and PyTorch with antialias=True, have it


def _resampling(old, new):
    """Return the antialiased bicubic weights of places that fill the same length."""
    scale = old / new
    support = max(scale, 1.0)  # shrinking widens the filter: no aliasing
    centers = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old)[None, :] + 0.5 - centers[:, None]) / support
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * CUBIC - 4 * CUBIC
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    return weights / weights.sum(axis=1, keepdims=True)


def spreading(old, new):
    """Return the linear weights of distances (BEiT, `run_class_finetuning.py`), both of which are odd in number.

    The distances of the old table stand at 0, 1, 1 + q, 1 + q + q^2, ... patches; q makes the last the new one's.
    """
    near, far = np.float64(1.01), 1.5
    with np.errstate(over="ignore"):  # of a table beyond any window
        while far - near > 1e-6:
            ratio = (near + far) / 2
            near, far = (near, ratio) if (ratio ** (old // 2) - 1) / (ratio - 1) > new // 2 else (ratio, far)
    ahead = np.cumsum(ratio ** np.arange(old // 2))
    rows = np.arange(old)
    row = np.interp(np.arange(new) - new // 2, np.concatenate([-ahead[::-1], [0], ahead]), rows)
    return np.maximum(1 - np.abs(row[:, None] - rows), 0)


def resize_positions(array, stated):
    """Return the array, float32, resampled to what the model states.

    A :class:`PositionEmbedding` is scaled with the image (antialiased bicubic), as by timm's `resample_abs_pos_embed`.
    :class:`RelativePositions` stay those of the same distances, the far ones spread, as by its
    `resize_rel_pos_bias_table`. Returns the array itself where its places are those of no square grid.

    Args:
        array: [1, tokens, C] or [1, rows, columns, C]; for :class:`RelativePositions` [relative positions, heads] or,
            where the heads come first, [heads, 2 * rows - 1, 2 * columns - 1].
    """
    if isinstance(stated, RelativePositions):
        rows, columns = (2 * side - 1 for side in stated.window)
        if array.ndim == 3:
            places = array.reshape(len(array), array.shape[1] * array.shape[2]).T
            resized = _resize_grid(places, rows, columns, spreading)
            return array if resized is None else resized.T.reshape(-1, rows, columns)
        places, others = np.split(array, [len(array) - stated.num_others])
        resized = _resize_grid(places, rows, columns, spreading)
        return array if resized is None else np.concatenate([resized, others])
    if array.ndim == 4:
        if len(array) != 1 or array.shape[1] != array.shape[2]:
            return array
        listed = array.reshape(1, -1, array.shape[-1])
        return resize_positions(listed, stated).reshape(1, *stated.grid, array.shape[-1])
    prefix, places = np.split(array, [stated.num_prefix_tokens], axis=1)
    resized = _resize_grid(places[0], *stated.grid)
    return array if resized is None else np.concatenate([prefix, resized[None]], axis=1)


def _resize_grid(places, rows, columns, weights=_resampling):
    """Return [rows * columns, C] float32 for [side * side, C], None where that is no square.

    `weights` returns the matrix [new, old] of one axis; its rows sum to 1.
    """
    side = math.isqrt(len(places))
    if side == 0 or side**2 != len(places) or (weights is spreading and side % 2 == 0):
        return None
    old = places.reshape(side, side, -1).astype(np.float64)
    new = np.einsum("yh,xw,hwc->yxc", weights(side, rows), weights(side, columns), old, optimize=True)
    return new.reshape(rows * columns, -1).astype(np.float32)
