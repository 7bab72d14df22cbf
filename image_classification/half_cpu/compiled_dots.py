"""Convolutions of single pixels in bfloat16 by the processor's dot products of pairs, for filters that are kept.

oneDNN's kernels wait for the memory where sums become results, and for filters that no cache holds.
"""

import functools
import math

from . import onednn_library as onednn
from .arguments import BFLOAT16
from .compiled import Primitive, convolution_constants, convolving, filters_reorder, own
from .compiled_library import load
from .compiled_long_products import multiplies_bfloat16
from .onednn_primitives import new_tensor

_VECTOR = 16  # numbers
_CLAMPS = {b"identity": (-math.inf, math.inf), b"relu": (0.0, math.inf), b"relu6": (0.0, 6.0)}


def pays(changes, name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass is faster here; `changes`: whether filters are not kept.

    On AMD Zen 4, whose vectors of 512 bits pass its units in two halves, oneDNN takes 1.0 to 1.25 times as long, one
    call of ResNet-50 after the other. The answer does not depend on how many images there are, so that the result of
    none of them does.
    """
    if changes or name != "forward" or filters.data_type != onednn.BFLOAT16 or filters.shape[2:] != (1, 1):
        return False
    if not multiplies_bfloat16() or load().has_amx or not load().halves_vectors:
        return False
    outputs, inputs, *_ = filters.shape
    key = source, filters, target, geometry, post_ops
    is_known = convolution_constants(name, *key)[-1] in (None, *_CLAMPS)
    return outputs % _VECTOR == inputs % 2 == 0 and inputs >= _VECTOR and is_known and not any(map(any, geometry[2:]))


@own
def describe(name, *key):
    """The primitive of a pass, with the arguments of `compiled.convolution`'s; its filters come from the next one."""
    _, _, constants, activation = convolution_constants(name, *key)
    call = functools.partial(load().dot_convolution, constants, *_CLAMPS[activation or b"identity"])
    return Primitive(convolving(name, call), (0, onednn.ELEMENT_SIZE[onednn.BFLOAT16] * math.prod(key[1].shape), 0))


@own
def describe_filters(plain_type, name, *key):
    """The way from plain filters to those of a pass."""
    reorder, (outputs, inputs, *_) = filters_reorder(plain_type, name, *key), key[1].shape

    def run(plain, out):
        ordered = new_tensor(BFLOAT16, key[1].shape)
        reorder(plain, ordered.data_ptr())
        load().dot_filters(inputs, outputs, ordered.data_ptr(), out)

    return Primitive(run)
