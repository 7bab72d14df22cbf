"""Convolutions by AMX in bfloat16, for filters that are kept: of windows, and of single pixels with a norm behind.

What stands behind the sum costs oneDNN's kernels as much as the products.
"""

import functools
import math

import paddle

from . import onednn_library as onednn
from .compiled import Primitive, convolution_constants, convolving, filters_reorder, own
from .compiled_library import load
from .compiled_tiles import PANEL, has_tiles
from .onednn_primitives import new_tensor

_MOST_TERMS = 4096  # of single pixels: beyond, the order of sums depends on how many images there are


def _folds(inputs, columns, dilation):
    """Return whether the columns of a window are as good as channels."""
    return PANEL <= 2 * inputs * columns <= 2 * PANEL and not dilation


def pays(changes, name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster here; `changes`: whether filters are not kept.

    The answer does not depend on how many images there are, so that the result of none of them does.
    """
    if changes or name != "forward" or filters.data_type != onednn.BFLOAT16:
        return False
    if len(filters.shape) != 4 or not has_tiles():
        return False
    outputs, inputs, *window = filters.shape
    pixels = math.prod(target.shape[2:])
    if window != [1, 1]:
        is_whole = inputs % PANEL == 0 or _folds(inputs, window[1], geometry[1][1])
        return is_whole and outputs % PANEL == 0 and 2 * pixels >= PANEL
    fits = outputs % PANEL == inputs % PANEL == 0 and inputs <= _MOST_TERMS and not any(map(any, geometry[2:]))
    return fits and bool(post_ops) and pixels >= PANEL


@own
def describe(name, *key):
    """The primitive of a pass, with the arguments of `compiled.convolution`'s; its filters come from the next one."""
    _, _, constants, activation = convolution_constants(name, *key)
    call = functools.partial(load().tiled_convolution, constants, activation or b"identity")
    outputs, inputs, rows, columns = key[1].shape
    terms = rows * (PANEL if inputs % PANEL else inputs * columns)
    return Primitive(convolving(name, call), (0, onednn.ELEMENT_SIZE[onednn.BFLOAT16] * outputs * terms, 0))


@own
def describe_filters(plain_type, name, *key):
    """The way from plain filters to those of a pass."""
    constants = convolution_constants(name, *key)[2]
    reorder = filters_reorder(plain_type, name, *key)

    def run(plain, out):
        ordered = new_tensor(paddle.bfloat16, key[1].shape)
        reorder(plain, ordered.data_ptr())
        load().tiled_filters(constants, ordered.data_ptr(), out)

    return Primitive(run)
