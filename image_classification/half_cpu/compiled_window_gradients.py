"""Gradients of the filters of convolutions with windows of several pixels by AMX, in bfloat16.

oneDNN's take 1.1 to 3 times as long, the more the fewer pixels and the more channels there are.
"""

import functools
import math

from . import onednn_library as onednn
from .compiled import Primitive, convolution_constants, own
from .compiled_library import load
from .compiled_tiles import PANEL, has_tiles


def pays(name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster here: not with channels that leave more than a fifth of the tiles empty, few
    channels that move by strides, or windows that reach over more than half of an image beyond it."""
    if name != "backward_weights" or filters.data_type != onednn.BFLOAT16 or len(filters.shape) != 4:
        return False
    outputs, inputs, *window = filters.shape
    strides, dilations, *_ = geometry
    if math.prod(window) == 1 or min(outputs, inputs) < (PANEL if strides == (1, 1) else 2 * PANEL):
        return False
    tiles = math.prod(-(-channels // PANEL) * PANEL for channels in (outputs, inputs))
    if 4 * tiles > 5 * outputs * inputs:
        return False
    sizes = zip(target.shape[2:], window, dilations, strict=True)
    return has_tiles() and all(not gap or 2 * (taps - 1) * (gap + 1) <= size for size, taps, gap in sizes)


@own
def describe(plain_type, name, *key):
    """The primitive of a pass, which writes plain filters of a format, rounded to bfloat16."""
    constants = convolution_constants(name, *key)[2]
    return Primitive(functools.partial(load().window_gradient, plain_type, constants))
