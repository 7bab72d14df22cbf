"""Convolutions of single pixels by AMX with a normalisation behind, in bfloat16, for filters that are kept.

What stands behind the sum costs oneDNN's kernels as much as the products.
"""

import math

from . import onednn_library as onednn
from .compiled import Primitive, convolution_constants
from .compiled_library import load
from .compiled_tiles import PANEL, has_tiles

_MOST_TERMS = 4096  # beyond, the order of sums depends on how many images there are


def pays(changes, name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster here; `changes`: whether filters are not kept.

    The answer does not depend on how many images there are, so that the result of none of them does.
    """
    if changes or name != "forward" or not post_ops or filters.data_type != onednn.BFLOAT16:
        return False
    if filters.shape[2:] != (1, 1) or any(map(any, geometry[2:])) or not has_tiles():
        return False
    outputs, inputs = filters.shape[:2]
    fits = outputs % PANEL == inputs % PANEL == 0 and inputs <= _MOST_TERMS
    return fits and math.prod(target.shape[2:]) >= PANEL


def describe(library, builder, name, *key):
    """The primitive of a pass, with the arguments of `compiled.convolution`'s; its filters come from the next one."""
    _, _, constants, activation = convolution_constants(name, *key)

    def run(images, filters, out, factor, addend, residual=None):
        load().tiled_convolution(constants, activation, images, filters, out, factor, addend, residual)

    return Primitive(run, 3, (0, onednn.ELEMENT_SIZE[onednn.BFLOAT16] * math.prod(key[1].shape), 0))


def describe_filters(library, builder, plain_type, name, source, filters, *key):
    """The way from plain filters to those of a pass."""
    outputs, inputs = filters.shape[:2]
    return Primitive(lambda plain, out: load().tiled_filters(outputs, inputs, plain, out), 2)
