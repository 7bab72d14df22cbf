"""Which copies to another memory order are a compiled kernel's, and which oneDNN's."""

import functools
import itertools

from . import onednn_library as onednn
from .onednn_primitives import CACHE_SIZE, dense_strides


def is_compiled(source, target):
    """oneDNN refuses some strides, takes a microsecond longer to be called, which is what a small weight takes, and up
    to 16 times as long to transpose."""
    if source.data_type != target.data_type:
        return source.strides == target.strides == dense_strides(source.shape)
    return overlaps(source) or overlaps(target) or _transposes(source, target)


@functools.lru_cache(maxsize=CACHE_SIZE)
def overlaps(layout):
    """Return whether oneDNN refuses strides because an axis reaches, by whole steps, beyond that of the next one, as
    every second one of an odd number of rows does."""
    axes = sorted((stride, size) for size, stride in zip(layout.shape, layout.strides, strict=True) if size > 1)
    return any(stride * size > next_one for (stride, size), (next_one, _) in itertools.pairwise(axes))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _transposes(source, target):
    """Return whether many numbers that lie side by side in one order lie apart in the other; or two half ones there."""
    count, step = _run(target, source)
    is_pair = count == 2 and source.data_type != onednn.FLOAT32
    return step > 1 and (count >= 16 or is_pair) and _run(source, target)[0] >= 16


def _run(layout, other):
    """Return how many numbers lie side by side in a layout and at even steps in another one, and that step."""
    count, step = 1, 0
    for stride, apart, size in sorted(zip(layout.strides, other.strides, layout.shape, strict=True)):
        if size > 1:
            step = step or apart
            if stride != count or apart != count * step:
                break
            count *= size
    return count, step
