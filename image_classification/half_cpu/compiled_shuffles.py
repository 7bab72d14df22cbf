"""Pixel shuffle, its inverse and channel shuffle in the memory order of images, on all formats: one copy each way."""

from .linear_map import both_ways
from .onednn_memory import copy_layout, new_channels_last, settled
from .onednn_primitives import Layout, bound, data_type, new_tensor, servable


def _shuffled(x, shape, parts):
    """Return images of `shape`, whose C, H and W are those of x read as products of axes in another order.

    `parts` are (size, (axis of x, step), (axis of the result, step)): the axes between which places are shared.
    """
    return both_ways(x, _moved, (shape, parts), (x.shape, [(size, there, here) for size, here, there in parts]))


def _moved(shape, parts, x):
    """Return images of a shape in the memory order of x."""
    x = settled(x)
    out = (new_tensor if x.is_contiguous() else new_channels_last)(x.dtype, shape)
    sizes = (x.shape[0], *(size for size, *_ in parts))
    steps = [
        (tensor.strides[0], *(tensor.strides[axis] * step for axis, step in places))
        for tensor, places in zip((x, out), zip(*((here, there) for _, here, there in parts), strict=True), strict=True)
    ]
    source, target = (Layout(data_type(x), sizes, strides) for strides in steps)
    copy_layout(source, target, x.data_ptr(), out.data_ptr())
    return out


def _pixel_parts(channels, height, width, factor):
    """Return the parts of images [B, channels * factor * factor, height, width] and of the shuffled ones."""
    return [
        (channels, (1, factor * factor), (1, 1)),
        (factor, (1, factor), (2, 1)),
        (factor, (1, 1), (3, 1)),
        (height, (2, 1), (2, factor)),
        (width, (3, 1), (3, factor)),
    ]


def _arguments(args, kwargs, name):
    """Return (x, the whole number called `name`) of a call for images [B, C, H, W], or None."""
    values = bound(args, kwargs, ("x", name, "data_format"), ("NCHW",))
    if values[2] != "NCHW" or type(values[1]) is not int or values[1] < 1:
        return None
    return values[:2] if servable(values[0]) and values[0].ndim == 4 else None


def pixel_shuffle(original, args, kwargs):
    """Kernel of ``pixel_shuffle(x, upscale_factor, data_format)``."""
    found = _arguments(args, kwargs, "upscale_factor")
    if found is None or found[0].shape[1] % found[1] ** 2:
        return NotImplemented  # Paddle words the error
    x, factor = found
    batch, channels, height, width = x.shape
    shape = [batch, channels // factor**2, height * factor, width * factor]
    return _shuffled(x, shape, _pixel_parts(shape[1], height, width, factor))


def pixel_unshuffle(original, args, kwargs):
    """Kernel of ``pixel_unshuffle(x, downscale_factor, data_format)``."""
    found = _arguments(args, kwargs, "downscale_factor")
    if found is None or any(size % found[1] for size in found[0].shape[2:]):
        return NotImplemented
    x, factor = found
    batch, channels, height, width = x.shape
    shape = [batch, channels * factor**2, height // factor, width // factor]
    parts = _pixel_parts(channels, height // factor, width // factor, factor)
    return _shuffled(x, shape, [(size, wide, deep) for size, deep, wide in parts])


def channel_shuffle(original, args, kwargs):
    """Kernel of ``channel_shuffle(x, groups, data_format)``."""
    found = _arguments(args, kwargs, "groups")
    if found is None or found[0].shape[1] % found[1]:
        return NotImplemented
    x, groups = found
    _, channels, height, width = x.shape
    each = channels // groups
    places = [(height, (2, 1), (2, 1)), (width, (3, 1), (3, 1))]
    return _shuffled(x, x.shape, [(groups, (1, each), (1, 1)), (each, (1, 1), (1, groups)), *places])


KERNELS = {"pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle, "channel_shuffle": channel_shuffle}
