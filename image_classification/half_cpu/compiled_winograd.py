"""Convolutions of 3 x 3 filters by tiles (Winograd): a quarter of the multiplications, in float32, for half formats."""

import functools
import math

from . import onednn_library as onednn
from .compiled import Primitive, convolution_constants, convolving, filters_reorder, formats, own
from .compiled_library import load
from .compiled_long_products import multiplies_bfloat16

_TILE, _POINTS = 4, 36  # results of a tile along an axis, and numbers that stand for a filter


def pays(changes, name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster by tiles; `changes`: whether filters are not kept, so that to transform them is
    part of it. Of kept ones, which evaluate, nothing depends on how many images there are.

    In a format whose direct kernel multiplies in float32, too, it takes a third to two thirds of the time; where AMX
    multiplies float16 half to 0.9 for up to 128 channels, or more pixels, and else more; where oneDNN multiplies
    bfloat16 twice as fast 0.66 to 0.93, in a model more for those of few channels;
    where AMX multiplies bfloat16 more than twice.
    float32 results stay those of direct sums: these are twice as far from the exact ones, and depend on what is up to
    five pixels away.
    """
    strides, dilations, *padding = geometry
    if filters.shape[2:] != (3, 3) or strides != (1, 1) or dilations != (0, 0) or max(map(max, padding)) > 2:
        return False
    outputs, inputs, *_ = filters.shape
    batch, _, *sides = target.shape
    pixels = math.prod(sides) * (batch if changes else 1)
    written = (source if name == "backward_data" else target).shape[2:]
    waste = math.prod(-(-size // _TILE) * _TILE for size in written) / math.prod(written)
    if filters.data_type in formats():
        by_amx = filters.data_type == onednn.FLOAT16 and load().has_amx
        if by_amx and inputs * outputs > (16 if changes else 100) * pixels:
            return False
        return min(inputs, outputs) >= 16 and waste < 2 and pixels >= (300 if changes else 1)
    if filters.data_type != onednn.BFLOAT16 or not multiplies_bfloat16() or load().has_amx:
        return False
    if not changes:
        return min(inputs, outputs) >= 48 and inputs * outputs <= 1024 * pixels and waste <= 1.4 and pixels >= 128
    return min(inputs, outputs) >= 64 and inputs * outputs <= 16 * pixels and waste <= 1.2 and pixels >= 512


def _size(inputs, outputs):
    """Return how many floats transformed filters may take: 16 lanes, and gaps between points and parts."""
    return _POINTS * (inputs + 1) * -(-outputs // 16) * 16


def _channels(name, filters):
    """Return (channels that are read, channels that are written) of a pass."""
    outputs, inputs, *_ = filters.shape
    return (outputs, inputs) if name == "backward_data" else (inputs, outputs)


@own
def describe(name, *key):
    """The primitive of a pass, with the arguments of `compiled.convolution`'s; its filters come from the next one."""
    size = 0 if name == "backward_weights" else _size(*_channels(name, key[1]))
    call = functools.partial(load().winograd, *convolution_constants(name, *key))
    plain = 2 * math.prod(key[1].shape)
    return Primitive(convolving(name, call, size), (0, 4 * size + plain, 0))


@own
def describe_filters(plain_type, name, *key):
    """The way from plain filters to those of a pass: transformed, and behind them in the order of the direct kernel,
    which computes what does not stay finite. For backward_weights, the way back to plain ones."""
    reorder = filters_reorder(plain_type, name, *key)
    if name == "backward_weights":
        return reorder
    inputs, outputs = _channels(name, key[1])
    behind = 4 * _size(inputs, outputs)
    transform = functools.partial(load().winograd_filters, key[1].data_type, name == "backward_data", inputs, outputs)

    def run(plain, out):
        reorder(plain, out + behind)
        transform(out + behind, out)

    return Primitive(run)
