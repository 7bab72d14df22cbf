"""Convolutions as products of matrices: those of single pixels, and gradients of large filters that move by strides."""

import math

from . import compiled, compiled_long_products, compiled_tiles
from . import onednn_library as onednn
from .onednn_matmul import multiply
from .onednn_matrices import matrix
from .onednn_primitives import Layout, cache, dense_strides, new_tensor

PIXELS = ((1, 1), (0, 0), (0, 0), (0, 0))  # the geometry of a window that moves by single pixels and needs no more


def is_product(changes, name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass of a convolution is faster as a product; `changes`: whether its filters are not kept.

    One of single pixels needs no other order of the filters. Its gradients are 1.0 to 1.4 times as fast in float32, and
    with large filters 1.0 to 1.8 times in every format at batch 8, 1.1 to 4 times at batch 2; its result is 1.1 to 2.3
    times as fast where there are few pixels, unless the filters were rearranged for a batch before. The gradient of
    large filters that move by strides, patches among them, is 1.0 to 1.9 times as fast, the windows gathered first; in
    float32 only that of many channels. In bfloat16 so is that of others whose results are less than eight pixels wide,
    1.05 to 1.2 times.
    """
    numbers = math.prod(filters.shape)
    if len(filters.shape) == 5:
        return False
    pixels = math.prod(target.shape) // target.shape[1]
    is_single = filters.shape[2:] == (1, 1) and geometry == PIXELS
    if is_single and name != "forward" and filters.data_type == onednn.FLOAT32 and compiled.formats():
        return True
    if is_single and not post_ops and _pays(name, filters.data_type, pixels, *filters.shape[:2]):
        return True
    if numbers < 1 << 18 or filters.data_type in compiled.formats():
        return False
    if is_single:
        return name != "forward" or pixels <= 512 and not post_ops and changes
    inputs = 1 if filters.data_type == onednn.BFLOAT16 else 256
    large = numbers >= 1 << 19 and filters.shape[1] >= inputs and bool(compiled.formats())
    narrow = filters.data_type == onednn.BFLOAT16 and target.shape[3] < 8
    return name == "backward_weights" and (geometry[0] != (1, 1) or narrow) and large


def _pays(name, data_type, pixels, outputs, inputs):
    """Return whether compiled products of so many single pixels are faster than oneDNN's convolution."""
    if name == "backward_weights":
        return compiled_long_products.pays(data_type, pixels, outputs, inputs) or compiled_tiles.pays(
            data_type, False, outputs, inputs, pixels
        )
    terms, columns = (inputs, outputs) if name == "forward" else (outputs, inputs)
    return compiled_tiles.pays(data_type, True, pixels, columns, terms)


def run_as_product(name, key, first, weight, last):
    """Run a pass with images as rows of pixels, [B * H * W, C]; `key` and operands are those of the pass."""

    def rows(tensor):
        batch, channels, height, width = tensor.shape
        return matrix(tensor, batch * height * width, channels)

    filters = matrix(weight, weight.shape[0], math.prod(weight.shape[1:]))
    if name == "forward":
        multiply(rows(first), filters.transposed, rows(last))
    elif name == "backward_data":
        multiply(rows(first), filters, rows(last))
    elif key[3] == PIXELS and key[1].shape[2:] == (1, 1):
        multiply(rows(last).transposed, rows(first), filters)
    else:
        _filter_gradient(key, first, filters, rows(last), weight.dtype)


def _filter_gradient(key, images, out, gradient, dtype):
    """Write the gradient of filters, [O, C * kh * kw], from that of the results, [B * H' * W', O]."""
    source, filters, target, geometry = key
    window = filters.shape[2:]
    rows, columns = gradient.layout.shape[0], out.layout.shape[1]
    windows = new_tensor(dtype, [rows, columns])
    cache.get(_describe_windows, source, window, target, geometry)(images.data_ptr(), windows.data_ptr())
    if math.prod(window) == 1:
        multiply(gradient.transposed, matrix(windows, rows, columns), out)
        return
    taps_first = new_tensor(dtype, [filters.shape[0], columns])
    multiply(gradient.transposed, matrix(windows, rows, columns), matrix(taps_first, filters.shape[0], columns))
    cache.get(_describe_taps_last, filters)(taps_first.data_ptr(), out.pointer)


@compiled.own
def _describe_windows(source, window, target, geometry):
    """The copy of images [B, C, H, W], which lie as [B, H, W, C], to [B, H', W', kh, kw, C]: what each result reads."""
    (batch, channels, height, width), (tall, wide) = source.shape, window
    shape = (batch, *target.shape[2:], tall * wide * channels)
    steps = dense_strides(shape)
    strides, dilations, before, after = geometry
    boxes = [(0, 0, *shape, 0, 0, 0, 0, *steps)] if any((*before, *after)) else []
    for tap in range(tall * wide):
        spans = []
        for place, size, count, stride, dilation, padding in zip(
            divmod(tap, wide), (height, width), shape[1:3], strides, dilations, before, strict=True
        ):
            begin = place * (dilation + 1) - padding  # what the first result reads
            first = max(0, -(begin // stride))
            spans.append((begin + first * stride, first, min(count, (size - 1 - begin) // stride + 1) - first))
        (y, top, rows), (x, left, columns) = spans
        if rows < 1 or columns < 1:
            continue
        begins = (y * width + x) * channels, top * steps[1] + left * steps[2] + tap * channels
        source_steps = height * width * channels, strides[0] * width * channels, strides[1] * channels, 1
        boxes.append((*begins, batch, rows, columns, channels, *source_steps, *steps))
    return compiled.move(source.data_type, 4, boxes)


@compiled.own
def _describe_taps_last(filters):
    """The copy of filters that lie as [O, kh * kw, C] to [O, C, kh, kw], dense."""
    outputs, channels, *window = filters.shape
    taps = math.prod(window)
    shape = (outputs, channels, taps)
    source = Layout(filters.data_type, shape, (channels * taps, 1, channels))
    return compiled.reorder(source, Layout(filters.data_type, shape, dense_strides(shape)))
