"""The three passes of a convolution: result, gradient of the images, gradient of the filters.

Images lie in memory as [B, H, W, C], where oneDNN's bfloat16 convolutions are fastest. The results are
ordinary tensors with such strides, so a chain of convolutions, normalisations, activations and sums stays in that order
and only its first image and its last feature map are rearranged.
"""

import functools
import math
from typing import NamedTuple

import paddle

from . import compiled, compiled_dots, compiled_tiled_convolution, compiled_window_gradients, compiled_winograd
from . import onednn_library as onednn
from .arguments import FLOAT32
from .compiled_tiles import has_tiles
from .onednn_convolution_faults import is_mistaken, reads_too_far
from .onednn_convolution_products import PIXELS, is_product, run_as_product
from .onednn_memory import (
    as_rows,
    channels_last,
    channels_last_layout,
    convert,
    in_dtype,
    new_channels_last,
    new_like,
    reorder_like,
)
from .onednn_packing import packing
from .onednn_primitives import (
    CACHE_SIZE,
    Builder,
    Layout,
    cache,
    data_type,
    dense_strides,
    is_sgemm,
    layout,
    new_tensor,
    numel,
    operand_numbers,
    scratch,
    servable,
)
from .onednn_windows import geometry_of, output_size, same_padding
from .scope import is_kept, made_once

FEW = 16  # channels of images, no more than a vector has numbers

# pass -> argument numbers; the weights come second
_PASSES = {
    "forward": (onednn.SRC, onednn.WEIGHTS, onednn.DST),
    "backward_data": (onednn.DIFF_DST, onednn.WEIGHTS, onednn.DIFF_SRC),
    "backward_weights": (onednn.SRC, onednn.DIFF_WEIGHTS, onednn.DIFF_DST),
}


def _arguments(builder, name, source, weights, target, geometry, post_ops=()):
    """Return the arguments of a pass's description; oneDNN chooses the order of the weights."""
    first, second, last = map(builder.md, (source, weights._replace(strides=None), target))
    bias = () if name == "backward_data" else (None,)
    operands = onednn.CONVOLUTION_DIRECT, first, second, *bias, last, *map(onednn.dimensions, geometry)
    if name == "forward":
        return "convolution_forward", onednn.FORWARD_TRAINING, *operands, builder.attributes(post_ops)
    hint = builder.hint(*_arguments(builder, "forward", source, weights, target, geometry))
    return f"convolution_{name}", *operands, hint, None


def _is_depthwise_gradient(name, source, filters, target, geometry, post_ops=()):
    """oneDNN takes three times as long for these in bfloat16, and six to ten times, as for groups of many channels, for
    those of float32 filters of more than three columns or with gaps between them."""
    if name == "forward" or len(filters.shape) != 5 or filters.shape[1:3] != (1, 1):
        return False
    if filters.data_type == onednn.BFLOAT16:
        return True
    return name == "backward_weights" and (filters.shape[4] > 3 or geometry[1] != (0, 0))


def has_passes(*key):
    """Return whether the passes can run: without a compiler float32, in which half ones may run, may have none for a
    gradient, and the forward one, which a transposed convolution needs in its backward pass, may be wrong."""
    try:
        for name in () if compiled.formats() else _PASSES:
            cache.get(_describe, name, *(_in_float32(key) if _is_widened(name, *key) else key))
    except onednn.OneDNNError:
        return False
    return True


def _in_float32(key):
    return [part._replace(data_type=onednn.FLOAT32) if isinstance(part, Layout) else part for part in key]


@functools.lru_cache(maxsize=CACHE_SIZE)
def _is_sgemm(name, *key):
    if key[1].data_type != onednn.FLOAT32:
        return False
    library = onednn.load()
    with Builder(library) as builder:
        return is_sgemm(library.implementation(builder.hint(*_arguments(builder, name, *key))))


def _is_compiled(name, *key):
    is_own = compiled.has_several_results(key[1]) or _is_depthwise_gradient(name, *key)
    return is_own or is_mistaken(name, *key) or _is_sgemm(name, *key)


@compiled.counterpart(compiled.convolution, _is_compiled)
def _describe(library, builder, name, *key):
    if is_mistaken(name, *key):
        raise onednn.OneDNNError("its results would be wrong")
    post_ops = key[4] if key[4:] else ()
    operands = [details[-1] for kind, *details in post_ops if kind == "binary"]
    # A residual is read number by number, each right before the result's is written: `sum` reads it there.
    replaced = (2, 3 + 2) if key[2] in operands[2:] else ()  # after the factors and addends of the channels
    numbers = [*_PASSES[name], *operand_numbers(post_ops)]
    return library.description(*_arguments(builder, name, *key)), numbers, replaced


@compiled.counterpart(compiled.filters_reorder, lambda plain_type, *key: _is_compiled(*key))
def _describe_weights(library, builder, plain_type, name, *key):
    """The rearrangement between plain weights and those that a pass wants, or, for backward_weights, writes; the plain
    ones have a format of their own, that of the pass or float32."""
    description = builder.hint(*_arguments(builder, name, *key))
    blocked = library.query_md(description, onednn.QUERY_EXEC_ARGUMENT, _PASSES[name][1])
    return packing(library, builder, key[1], blocked, back=plain_type if name == "backward_weights" else None)


def runs_in_float32(filters):
    """Return whether a convolution runs on widened copies: compiled products of a few channels are slower."""
    if len(filters.shape) != 5 or filters.shape[1:3] == (1, 1) or compiled.has_several_results(filters):
        return False
    return filters.data_type in compiled.formats()


def _is_widened(name, source, filters, target, geometry, post_ops=()):
    """Return whether a pass runs on widened copies: also where compiled kernels would gather windows of a few channels,
    such as colours, number by number, unless a normalisation follows in the same pass."""
    if runs_in_float32(filters) or reads_too_far(name, source, filters, target, geometry, post_ops):
        return True
    if filters.data_type not in compiled.formats() or has_tiles() or name == "backward_data" or post_ops:
        return False
    return len(filters.shape) == 4 and filters.shape[1] <= FEW and math.prod(filters.shape[2:]) > 1


def _skips_pixels(name, source, filters, target, geometry, post_ops=()):
    """Return whether a gradient is computed with a copy of the pixels that are read: filters of single pixels leave the
    others out. To oneDNN's own forward pass a copy adds as much as it saves.

    And oneDNN 3.6 reads and writes far beyond images of fewer than 16 channels where it gathers the pixels for the
    gradient of float32 filters.
    """
    single = filters.shape[-2:] == (1, 1) and geometry[0] != (1, 1) and geometry[2:] == PIXELS[2:]
    return single and (name == "backward_weights" or name == "backward_data" and bool(compiled.formats()))


def _run_on_read_pixels(name, key, first, weight, last):
    """Compute the gradient of images or filters with the pixels that are read."""
    tall, wide = key[3][0]
    images = first if name == "backward_weights" else last
    read = images[:, :, ::tall, ::wide]
    pixels = channels_last(read) if images is first else new_channels_last(read.dtype, read.shape)
    key = layout(pixels), *key[1:3], PIXELS
    if images is first:
        run(name, key, pixels, weight, last)
        return
    run(name, key, first, weight, pixels)
    as_rows(images).zero_()
    reorder_like(pixels, read)


def _run_in_float32(name, key, first, weight, last):
    """Run one pass on widened copies."""
    operands = [first, weight, last]
    written = 1 if name == "backward_weights" else 2
    wide = [
        new_like(tensor, FLOAT32) if index == written else in_dtype(tensor, FLOAT32)
        for index, tensor in enumerate(operands)
    ]
    run(name, _in_float32(key), *wide)
    convert(wide[written], operands[written])


def _turned_geometry(name, *key):
    """Return the geometry of the convolution of a depthwise result's gradient with filters turned round that gives the
    images' gradient, or None. oneDNN's forward pass is faster than the compiled gradient, but for 7 x 7 taps."""
    _, filters, _, (strides, dilations, *padding), *_ = key
    if name != "backward_data" or strides != (1, 1) or not _is_depthwise_gradient(name, *key):
        return None
    reach = [(size - 1) * (dilation + 1) for size, dilation in zip(filters.shape[3:], dilations, strict=True)]
    before, after = (tuple(most - own for most, own in zip(reach, part, strict=True)) for part in padding)
    return None if min(*before, *after) < 0 or not compiled.formats() else (strides, dilations, before, after)


def _turned(weight):
    """Return dense filters with the rows and columns of each in reverse order."""
    out = new_tensor(weight.dtype, weight.shape)
    taps = math.prod(weight.shape[2:])
    copy = compiled.reverse_rows(data_type(weight), numel(weight) // taps, taps)
    copy(weight.data_ptr(), out.data_ptr())
    return out


@functools.lru_cache(maxsize=CACHE_SIZE)
def _prepared(changes, plain_type, name, *key):
    """Return (the primitive of a pass, the copy of its filters or None where it takes them as they are, the format that
    these have then), or None for a pass that runs otherwise; `changes`: whether filters are not kept, which decides on
    products and tiles; `plain_type`: the format of the plain filters."""
    if compiled_window_gradients.pays(name, *key):
        return cache.get(compiled_window_gradients.describe, plain_type, name, *key), None, plain_type
    for own in (compiled_winograd, compiled_tiled_convolution, compiled_dots):
        if own.pays(changes, name, *key):
            filters = cache.get(own.describe_filters, plain_type, name, *key)
            return cache.get(own.describe, name, *key), filters, plain_type
    if is_product(changes, name, *key) or _is_widened(name, *key):
        return None
    if _skips_pixels(name, *key) or _turned_geometry(name, *key) is not None:
        return None
    primitive = cache.get(_describe, name, *key)
    if primitive.sizes:
        return primitive, cache.get(_describe_weights, plain_type, name, *key), plain_type
    return primitive, None, key[1].data_type


def _run_otherwise(changes, name, key, first, weight, last):
    """Run a pass as a product, on the pixels that are read or widened copies, or with filters turned round."""
    if _skips_pixels(name, *key):
        _run_on_read_pixels(name, key, first, weight, last)
    elif is_product(changes, name, *key):
        run_as_product(name, key, first, weight, last)
    elif _is_widened(name, *key):
        _run_in_float32(name, key, first, weight, last)
    else:
        source, filters, target, _ = key
        turned = target, filters, source, _turned_geometry(name, *key)
        run("forward", turned, first, _turned(weight), last)


def run(name, key, first, weight, last, operands=()):
    """Run one pass; `weight` is a plain tensor, read, or written by backward_weights, also as rounded float32 numbers.

    `key`: the layouts of images, filters and results, the geometry, and for the forward pass maybe post operations;
    `operands` are the pointers to the second operands of the binary ones among these.
    """
    own, plain = data_type(weight), weight.data_ptr()
    kept = is_kept(plain)
    found = _prepared(not kept, own, name, *key)
    if own != (key[1].data_type if found is None else found[2]):
        rounded = new_like(weight, first.dtype)
        run(name, key, first, rounded, last)
        convert(rounded, weight)
        return
    if found is None:
        _run_otherwise(not kept, name, key, first, weight, last)
        return
    primitive, rearrange, _ = found
    if rearrange is None:
        primitive(first.data_ptr(), plain, last.data_ptr(), *operands)
        return
    size = primitive.sizes[1]
    if name == "backward_weights":
        blocked = scratch(size).data_ptr()
        primitive(first.data_ptr(), blocked, last.data_ptr())
        rearrange(blocked, plain)
        return

    def block(out):
        rearrange(plain, out.data_ptr())
        return out

    if kept:
        blocked = made_once(plain, (name, *key), lambda: block(new_tensor(paddle.uint8, [size])))
    else:
        blocked = block(scratch(size))
    primitive(first.data_ptr(), blocked.data_ptr(), last.data_ptr(), *operands)


def grouped(filters, groups):
    """Return the layout of dense filters with an axis of groups in front, where there are several."""
    if groups == 1:
        return filters
    shape = (groups, filters.shape[0] // groups, *filters.shape[1:])
    return Layout(filters.data_type, shape, (shape[1] * filters.strides[0], *filters.strides))


class Plan(NamedTuple):
    """What is known of a convolution before it runs: the shape of its result [B, O, H', W'] and the passes' key."""

    shape: tuple
    key: tuple


def plan(x, weight, strides, padding, algorithm, dilations, groups, data_format):
    """Return the plan of a convolution, images and result lying as [B, H, W, C], or None where it is not served."""
    if not servable(x) or not servable(weight) or data_format != "NCHW":
        return None
    sizes = tuple(x.shape), tuple(weight.shape)
    return _plan(data_type(x), *sizes, tuple(strides), tuple(padding), algorithm, tuple(dilations), groups)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _plan(number, images, filters, strides, padding, algorithm, dilations, groups):
    if len(images) != 4 or len(filters) != 4 or images[1] != filters[1] * groups or filters[0] % groups:
        return None
    if algorithm == "SAME" and min(strides) > 0:
        dilations = (1, 1)  # Paddle ignores others here
        padding = same_padding(images[2:], filters[2:], strides)
    elif algorithm != "EXPLICIT":
        return None
    if min(*strides, *dilations) < 1:
        return None  # Paddle words the error
    geometry = geometry_of(filters[2:], strides, dilations, padding)
    sizes = [output_size(*numbers) for numbers in zip(images[2:], filters[2:], *geometry, strict=True)]
    if min(sizes) < 1:
        return None  # Paddle words the error
    shape = (images[0], filters[0], *sizes)
    weights = grouped(Layout(number, filters, dense_strides(filters)), groups)
    key = channels_last_layout(number, images), weights, channels_last_layout(number, shape), geometry
    return Plan(shape, key) if has_passes(*key) else None
