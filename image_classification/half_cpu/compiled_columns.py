"""Windows of images as columns, and the images that such columns add up to, on all formats; sums are float32."""

from .compiled_library import load, numbers
from .compiled_worth import pays
from .linear_map import both_ways
from .onednn_memory import contiguous
from .onednn_primitives import bound, data_type, new_tensor, numel


def _columns(x, adds, geometry, shape):
    """Return the windows of images as columns, or the images as sums of columns if `adds`, dense, in `shape`; each is
    the gradient of the other."""
    return both_ways(x, _rearranged, (adds, geometry, shape), (not adds, geometry, x.shape))


def _rearranged(adds, geometry, shape, x):
    x, out = contiguous(x), new_tensor(x.dtype, shape)
    kind, run = (data_type(x), load().fold) if adds else (x.element_size(), load().unfold)
    run(kind, numbers(*geometry), x.data_ptr(), out.data_ptr())
    return out


def _geometry(planes, sizes, window, strides, paddings, dilations):
    """Return (what the kernels read, windows in a plane), or None where there are none; paddings are top, left, bottom,
    right."""
    lists = (window, strides, paddings, dilations)
    if not all(isinstance(one, (list, tuple)) and all(type(number) is int for number in one) for one in lists):
        return None
    if [len(one) for one in lists] != [2, 2, 4, 2] or min(*window, *strides, *dilations) < 1 or min(paddings) < 0:
        return None
    places = [
        (sizes[i] + paddings[i] + paddings[i + 2] - dilations[i] * (window[i] - 1) - 1) // strides[i] + 1
        for i in (0, 1)
    ]
    if min(places) < 1:
        return None
    return (planes, *sizes, *places, *window, *strides, *paddings[:2], *dilations), places[0] * places[1]


def unfold(original, args, kwargs):
    """Kernel of ``unfold(x, kernel_sizes, strides, paddings, dilations)``."""
    x, window, *others = bound(args, kwargs, ("x", "kernel_sizes", "strides", "paddings", "dilations"), ())
    if x.ndim != 4 or not pays(x, numel(x)):
        return NotImplemented
    batch, channels, *sizes = x.shape
    found = _geometry(batch * channels, sizes, window, *others)
    if found is None:
        return NotImplemented  # Paddle words the error
    geometry, places = found
    return _columns(x, False, geometry, [batch, channels * window[0] * window[1], places])


def fold(original, args, kwargs):
    """Kernel of ``fold(x, output_sizes, kernel_sizes, strides, paddings, dilations)``."""
    values = bound(args, kwargs, ("x", "output_sizes", "kernel_sizes", "strides", "paddings", "dilations"), ())
    if values[0].ndim != 3 or not pays(values[0], numel(values[0])):
        return NotImplemented
    x, sizes, window, *others = values
    batch, channels, places = x.shape
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
        return NotImplemented
    found = _geometry(0, sizes, window, *others)
    if found is None or found[1] != places or channels % (window[0] * window[1]) or others[1][:2] != others[1][2:]:
        return NotImplemented  # Paddle counts the places of uneven paddings in its own way
    channels //= window[0] * window[1]
    return _columns(x, True, (batch * channels, *found[0][1:]), [batch, channels, *sizes])


KERNELS = {"fold": fold, "unfold": unfold}
