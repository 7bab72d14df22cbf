"""Rolling along axes, as shifted windows need it, on all formats: one copy each way; nothing is rounded."""

import itertools

from .linear_map import both_ways
from .onednn_memory import copy_layout, new_like, settled
from .onednn_primitives import Layout, bound, data_type, servable


def _rolled(shifts, x):
    """Return a tensor whose places are moved along axes; what leaves at one end comes in at the other, so that an axis
    which is shifted has two parts to copy."""
    x = settled(x)
    out = new_like(x)
    parts = [
        [(size - shift, 0, shift), *([(shift, size - shift, 0)] if shift else [])]
        for shift, size in zip(shifts, x.shape, strict=True)
    ]
    dtype, strides, width = data_type(x), tuple(x.strides), x.element_size()
    for block in itertools.product(*parts):
        sizes, *places = zip(*block, strict=True)
        start, end = (width * sum(a * b for a, b in zip(place, strides, strict=True)) for place in places)
        layout = Layout(dtype, sizes, strides)
        copy_layout(layout, layout, x.data_ptr() + start, out.data_ptr() + end)
    return out


def roll(original, args, kwargs):
    """Kernel of ``roll(x, shifts, axis)`` along named axes."""
    x, shifts, axes = bound(args, kwargs, ("x", "shifts", "axis"), ())
    if not servable(x):
        return NotImplemented
    shifts, axes = ([one] if type(one) is int else one for one in (shifts, axes))
    if not all(isinstance(value, (list, tuple)) and value for value in (shifts, axes)) or len(shifts) != len(axes):
        return NotImplemented
    if not all(type(number) is int for number in (*shifts, *axes)):
        return NotImplemented
    if not all(-x.ndim <= axis < x.ndim for axis in axes):
        return NotImplemented  # Paddle words the error
    whole = [0] * x.ndim
    for shift, axis in zip(shifts, axes, strict=True):
        whole[axis] = (whole[axis] + shift) % x.shape[axis]
    back = [-shift % size for shift, size in zip(whole, x.shape, strict=True)]
    return both_ways(x, _rolled, (whole,), (back,))


KERNELS = {"roll": roll}
