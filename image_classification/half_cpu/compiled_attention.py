"""softmax(scale q k^T + bias) v and its gradients, one sample and head at a time in a core's cache.

Scores are not rounded, probabilities are, before they are multiplied. See :mod:`onednn_tiles` for the operands.
"""

import math

from . import onednn_library as onednn
from .compiled import formats
from .compiled_library import load, numbers

# Up to so many scores of a head and channels of a head it is the faster way in all three formats, by 1.0 to 2 times for
# 5 to 257 tokens and 16 to 128 channels. Beyond, one head's probabilities leave the cache.
SCORES, CHANNELS = 256 * 256, 128

# With AMX the forward pass takes half of the time of the other way for any number of tokens, and the backward pass 0.6
# of it where a thread's memory holds all probabilities of a head and their gradients.
SCORES_AMX = 1280 * 1280


def serves(tiles, value):
    """Return whether this is the faster way for :class:`onednn_tiles.Tiles` and a view of values."""
    return _fits(tiles, value, SCORES) or _uses_amx(tiles) and _fits(tiles, value, math.inf)


def serves_backward(tiles, value, bias):
    """Return the same of the gradients; bias: whose gradient is wanted, or None."""
    if tiles.kept is not None:
        return _fits(tiles, value, SCORES)
    return bias is None and _uses_amx(tiles) and _fits(tiles, value, SCORES_AMX)


def _fits(tiles, value, scores):
    (*_, queries, dim), (*_, keys, value_dim) = tiles.query.layout.shape, value.layout.shape
    return queries * keys <= scores and max(dim, value_dim) <= CHANNELS and bool(formats())


def _uses_amx(tiles):
    # A causal mask lets queries see half of the keys, and here all of them are multiplied.
    is_bfloat16 = tiles.query.layout.data_type == onednn.BFLOAT16
    return is_bfloat16 and not tiles.causal and load() is not None and load().has_amx


def _constants(tiles, value, *others):
    """Return the number of the format, and the sizes and strides of the operands."""
    data_type, (batch, heads, queries, dim), _ = tiles.query.layout
    keys, value_dim = value.layout.shape[2:]
    biases, steps = 1, [0, 0, 0]
    if tiles.bias is not None:
        _, shape, strides = tiles.bias.layout
        biases, steps = shape[0], [0 if size == 1 else step for size, step in zip(shape, strides, strict=True)]
    strides = [one.layout.strides[:3] for one in (tiles.query, tiles.key, value, *others)]
    strides.insert(4, steps[:3])
    sizes = batch, heads, queries, keys, dim, value_dim, biases, tiles.causal
    return data_type, numbers(*sizes, *(step for operand in strides for step in operand)), tiles.scale


def _pointer(view):
    return None if view is None else view.pointer


def attend(tiles, value, out):
    """Write the mean of the values, weighted by the probabilities, to the view `out`, [B, h, N, d]."""
    operands = (tiles.query, tiles.key, value, tiles.bias, tiles.kept, out)
    load().attention(*_constants(tiles, value, out), *map(_pointer, operands))


def attend_backward(tiles, value, gradient, results, bias_gradient):
    """Write the gradients of queries, keys and values to three views, and that of the bias to a dense tensor."""
    operands = (tiles.query, tiles.key, value, tiles.bias, tiles.kept, gradient, *results)
    pointer = None if bias_gradient is None else bias_gradient.data_ptr()
    load().attention_backward(*_constants(tiles, value, gradient, *results), *map(_pointer, operands), pointer)
