"""Compiled kernels in the form of primitives: what the oneDNN modules build from a key, for formats that oneDNN lacks.

A describing function of those modules carries its counterpart here: ``@compiled.counterpart(softmax)``. Both get the
same key, and what is built is called with the same data pointers. Without AVX512-FP16 oneDNN has nothing for float16,
without AVX512-BF16 nothing fast for bfloat16.
"""

import functools
import math

from . import onednn_library as onednn
from .compiled_library import CompiledError, load, numbers

_ACTIVATIONS = {
    onednn.RELU: b"relu",
    onednn.RELU_USE_DST: b"relu",
    onednn.CLIP: b"relu6",
    onednn.HARDSWISH: b"hardswish",
    onednn.SWISH: b"silu",
    onednn.GELU_ERF: b"gelu",
    onednn.GELU_TANH: b"gelu_tanh",
}
_ARITHMETIC = {onednn.BINARY_ADD: b"add", onednn.BINARY_MUL: b"multiply"}


class Primitive:
    """A compiled kernel with its constants; call it with data pointers. `sizes`: the bytes behind them, if need be."""

    __slots__ = ("_call", "sizes", "implementation")

    def __init__(self, call, sizes=()):
        self._call = call
        self.sizes = sizes
        self.implementation = "compiled"

    def __call__(self, *pointers):
        self._call(*pointers)


def counterpart(build, preferred=lambda *key: False):
    """Return a decorator that says how the primitive of a describing function is built without oneDNN.

    `preferred(*key)` is true where the compiled kernel is the faster one though oneDNN has one too.
    """

    def decorate(describe):
        describe.compiled = build
        describe.preferred = preferred
        return describe

    return decorate


def own(build):
    """Mark the function that builds a primitive from a key alone, since oneDNN has no such one."""
    return counterpart(build, lambda *key: True)(build)


@functools.cache
def formats():
    """Return oneDNN's numbers of the formats that are computed by compiled kernels on this machine."""
    if load() is None:
        return frozenset()
    return frozenset((onednn.FLOAT16,) if _is_fast_in_bfloat16() else (onednn.FLOAT16, onednn.BFLOAT16))


def _is_fast_in_bfloat16():
    """Whether oneDNN multiplies bfloat16 faster than float32. On Intel's processors AMX does; their AVX512-BF16, which
    is what a virtual machine may have left of it, reached 0.68 of float32's speed."""
    library = onednn.load()
    if library is None or not library.has(onednn.AVX512_BF16):
        return False
    return library.has(onednn.AMX_BF16) or not load().is_intel


def description():
    """Return what logs call these kernels."""
    return f"compiled {load().instruction_set}{' amx' if load().has_amx else ''}"


def _partial(name, *constants):
    return functools.partial(getattr(load(), name), *constants)


def execution(library, primitive, arguments, pointers):
    """Return a function that does what `library.execute` does with these, in one call, or None without a compiler."""
    if load() is None:
        return None
    functions = library.address("memory_set_data_handle"), library.address("primitive_execute")
    counted = len(arguments), arguments, len(pointers), pointers
    return _partial("execute", *functions, primitive, library.stream, *counted)


def move(data_type, axes, boxes, wide=False):
    """The copy of boxes to another memory order, bit for bit. Each is (first element in the source, and in the target,
    sizes, strides in the source, all 0 for a box of zeros, strides in the target), of as many axes, in elements. Half
    elements become float32 ones where it is to be `wide`; there is no box of zeros then."""
    constants = numbers(*(number for box in boxes for number in box))
    if wide:
        return Primitive(_partial("widen", data_type, len(boxes), axes, constants))
    return Primitive(_partial("move", onednn.ELEMENT_SIZE[data_type], len(boxes), axes, constants))


def reorder(source, target):
    """Copy to another memory order, or to another format, both dense, or to float32 in another order."""
    box = (0, 0, *source.shape, *source.strides, *target.strides)
    if source.data_type == target.data_type:
        return move(source.data_type, len(source.shape), [box])
    if target.data_type == onednn.FLOAT32 and source.strides != target.strides:
        return move(source.data_type, len(source.shape), [box], wide=True)
    if source._replace(data_type=0) != target._replace(data_type=0):
        raise CompiledError(f"no conversion from {source} to {target}")
    return Primitive(_partial("convert", source.data_type, target.data_type, math.prod(source.shape)))


def sum_rows(matrix, format, pointer, out_pointer):
    """Write the column sums of a dense matrix in another format or its own."""
    load().reduce(matrix.data_type, format, *_sum_constants(*matrix.shape), pointer, None, 1.0, out_pointer)


@functools.lru_cache(maxsize=1024)
def _sum_constants(rows, columns):
    return numbers(1, rows, columns), numbers(*(rows * columns, columns, 1) * 2)


def reverse_rows(data_type, rows, columns):
    """The copy of a dense matrix with each row from its end to its beginning."""
    return move(data_type, 2, [(columns - 1, 0, rows, columns, columns, -1, columns, 1)])


def _activation_constants(algorithm, flat):
    return _ACTIVATIONS[algorithm], flat.data_type, flat.shape[0], 0, 0


def activation(algorithm, flat):
    return Primitive(_partial("activation", *_activation_constants(algorithm, flat)))


def activation_backward(algorithm, flat):
    return Primitive(_partial("activation_backward", *_activation_constants(algorithm, flat)))


def binary(algorithm, left, right):
    rows, columns = left.shape
    sizes, strides = numbers(1, 1, rows, columns), numbers(0, 0, columns, 1, 0, 0, columns * (right.shape[0] > 1), 1)
    return Primitive(_partial("pair", _ARITHMETIC[algorithm], left.data_type, sizes, strides))


def softmax(rows):
    return Primitive(_partial("softmax", rows.data_type, *rows.shape))


def softmax_backward(rows):
    return Primitive(_partial("softmax_backward", rows.data_type, *rows.shape))


def _layer_norm_constants(rows, result, statistics, epsilon, windows=None):
    return rows.data_type, result.data_type, *rows.shape, epsilon, windows and numbers(*windows)


def layer_norm(*key):
    return Primitive(_partial("layer_norm", *_layer_norm_constants(*key)))


def layer_norm_backward(*key):
    call = _partial("layer_norm_backward", *_layer_norm_constants(*key))
    return Primitive(lambda *pointers: call(*pointers[:-1]))  # the last one is oneDNN's


def _batch_norm_constants(images, epsilon, flags):
    batch, channels, *places = images.shape
    pixels = math.prod(places)
    shape = (batch * pixels, channels, 1) if images.strides[1] == 1 else (batch, channels, pixels)
    return images.data_type, *shape, epsilon, bool(flags & onednn.USE_GLOBAL_STATS)


def batch_norm(images, epsilon, flags, activation=None, has_residual=False):
    name = (activation or "identity").encode()
    call = _partial("batch_norm", *_batch_norm_constants(images, epsilon, flags), name)
    return Primitive(call if has_residual else lambda *pointers: call(*pointers, None))


def move_statistics(momentum, channels, *pointers):
    """Move running statistics, at the last two places, towards a mean and a variance as Paddle does, bit for bit."""
    load().move_statistics(channels, momentum, 1.0 - momentum, *pointers)


def batch_norm_backward(images, epsilon, flags, activation=None, has_residual=False):
    """With an activation of the sum with a residual it gets the result, and writes the residual's gradient."""
    name = (activation or "identity").encode()
    call = _partial("batch_norm_backward", *_batch_norm_constants(images, epsilon, flags), name)
    return Primitive(call if activation and has_residual else lambda *pointers: call(*pointers, None, None))


def matmul(left, right, bias, out, post_ops):
    """A product, in the format of its factors or float32; its post operations may be a scale, then an addend
    [.., M, N] or what the result holds already, or GELU alone."""
    scale, addend, gelu, adds_to_result = 1.0, None, False, False
    for kind, *details in post_ops:
        if kind == "binary" and addend is None and not gelu:
            addend = details[1]
        elif kind == "sum" and addend is None and not gelu:
            addend, adds_to_result = out, True
        elif details[0] == onednn.LINEAR and bias is None and addend is None and not gelu:
            scale = details[1]
        elif details[0] == onednn.GELU_ERF and not gelu:
            gelu = True
        else:
            raise CompiledError(f"no product with {post_ops}")
    layouts = [left, right, out] if addend is None else [left, right, out, addend]
    if len(out.shape) > 4:
        raise CompiledError(f"no products of {len(out.shape)} axes")
    leading = 4 - len(out.shape)
    sizes = numbers(*(1,) * leading, *out.shape, left.shape[-1])
    strides = []
    for one in layouts:
        repeated = len(one.shape) - (1 if one is addend else 2)
        steps = [0 if size == 1 and axis < repeated else step
                 for axis, (size, step) in enumerate(zip(one.shape, one.strides, strict=True))]  # fmt: skip
        strides += [0] * leading + steps
    if any(one.data_type != out.data_type for one in (bias, addend) if one is not None):
        raise CompiledError("what is added has another format than the result")
    call = _partial("matmul", left.data_type, out.data_type, sizes, numbers(*strides))

    def run(left, right, out, *others):
        given = iter((*others, out) if adds_to_result else others)
        call(left, right, out, scale, bias and next(given), addend and next(given), gelu)

    return Primitive(run)


# where each axis of filters [group, output, input, height, width] goes
_FILTER_ORDER = {"forward": (0, 3, 4, 2, 1), "backward_data": (0, 3, 4, 1, 2), "backward_weights": (0, 1, 3, 4, 2)}
_DEPTHWISE_ORDER = (3, 4, 0, 1, 2)
_FEW_RESULTS = 8  # of a channel, as in depthwise.h


def has_several_results(filters):
    """Return whether each group of filters has one channel and a few results of it: oneDNN computes these as products,
    which took twice as long."""
    return len(filters.shape) == 5 and filters.shape[2] == 1 and 1 < filters.shape[1] <= _FEW_RESULTS


def filters_reorder(plain_type, name, source, filters, target, geometry, post_ops=()):
    """The copy between plain filters and those that a pass wants, or, for backward_weights, writes; these become plain
    filters of their own format or float32."""
    shape, strides = filters.shape, filters.strides
    if len(shape) == 4:
        shape, strides = (1, *shape), (shape[0] * strides[0], *strides)
    order = _DEPTHWISE_ORDER if shape[2] == 1 and shape[1] <= _FEW_RESULTS else _FILTER_ORDER[name]
    steps, step = [0] * 5, 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis]
    plain, ordered = (filters._replace(shape=shape, strides=one) for one in (strides, tuple(steps)))
    if name == "backward_weights":
        return reorder(ordered, plain._replace(data_type=plain_type))
    return reorder(plain, ordered)


def convolution_constants(name, source, filters, target, geometry, post_ops=()):
    """Return the first arguments of a pass of a convolution."""
    groups = filters.shape[0] if len(filters.shape) == 5 else 1
    outputs, inputs, *window = filters.shape[-4:]
    strides, dilations, before, _ = geometry
    constants = numbers(
        source.shape[0], groups, inputs, outputs, *source.shape[2:], *target.shape[2:],
        *window, *strides, *(dilation + 1 for dilation in dilations), *before,
    )  # fmt: skip
    activation = None
    if post_ops:
        kind, algorithm, *_ = post_ops[-1]
        activation = _ACTIVATIONS[algorithm] if kind == "eltwise" else b"identity"
    return source.data_type, ("forward", "backward_data", "backward_weights").index(name), constants, activation


def convolving(name, call, *last):
    """Return the call of a pass that a kernel computes: of operands in the order of oneDNN's, None for what is left
    out."""

    def run(first, filters, results, factor=None, addend=None, residual=None):
        operands = (first, results, filters) if name == "backward_weights" else (first, filters, results)
        call(*operands, factor, addend, residual, *last)

    return run


def convolution(name, *key):
    """A pass of a convolution; the forward one may end with a product and a sum for each channel, the sum with a
    residual and an activation, in this order."""
    run = convolving(name, _partial("convolution", *convolution_constants(name, *key)))
    filters = key[1]
    _, inputs, *window = filters.shape[-4:]
    size = onednn.ELEMENT_SIZE[filters.data_type] * math.prod(filters.shape)
    # Filters of a single tap are taken as they are.
    return Primitive(run, (0, size, 0) if math.prod(window) > 1 or inputs == 1 else ())


def _pooling_constants(algorithm, source, target, window):
    size, strides, before, _ = window
    constants = numbers(*source.shape, *target.shape[2:], *size, *strides, *before)
    if algorithm == onednn.POOL_MAX and math.prod(size) > 256:
        raise CompiledError("positions of more than 256 elements")
    padding = algorithm == onednn.POOL_AVG_INCLUDE_PADDING
    return source.data_type, constants, algorithm == onednn.POOL_MAX, padding


def pooling(kind, algorithm, source, target, window):
    call = _partial("pooling", *_pooling_constants(algorithm, source, target, window))
    if algorithm == onednn.POOL_MAX and kind == onednn.FORWARD_TRAINING:
        return Primitive(call, (0, 0, math.prod(target.shape)))
    return Primitive(lambda source, target: call(source, target, None))


def pooling_backward(algorithm, source, target, window):
    call = _partial("pooling_backward", *_pooling_constants(algorithm, source, target, window))
    if algorithm == onednn.POOL_MAX:
        return Primitive(call)
    return Primitive(lambda gradient, target: call(gradient, target, None))
