"""Gradients of the filters of convolutions with windows of several pixels by AMX, in bfloat16.

oneDNN's take 1.1 to 2.4 times as long: it turns the gradient of the results round for each of its blocks.
"""

import functools
import math

from . import onednn_library as onednn
from .compiled import Primitive, convolution_constants
from .compiled_library import load
from .compiled_tiles import PANEL, has_tiles


def pays(name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster here: not where channels fill no tiles."""
    if name != "backward_weights" or filters.data_type != onednn.BFLOAT16 or len(filters.shape) != 4:
        return False
    outputs, inputs, *window = filters.shape
    return math.prod(window) > 1 and min(outputs, inputs) >= PANEL and has_tiles()


def describe(library, builder, plain_type, name, *key):
    """The primitive of a pass, which writes plain filters of a format, rounded to bfloat16."""
    constants = convolution_constants(name, *key)[2]
    return Primitive(functools.partial(load().window_gradient, plain_type, constants), 3)
