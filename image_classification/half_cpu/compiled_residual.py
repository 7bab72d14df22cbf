"""addend + x * scale in one pass each way: residuals with layer scale and drop path, scale and shift, and sums and
products of a half tensor and float32 parameters, which give float32 without a copy of the tensor in float32.

The arithmetic is float32, rounded once. A row has the shape of a tensor's last axes, in its memory order.
"""

import math

from . import paddle_names
from .arguments import CPU, FLOAT32
from .compiled_library import load
from .onednn_memory import are_rows, channels_last, contiguous, in_dtype, in_float32, new_like, passed_on
from .onednn_primitives import DATA_TYPES, bound, data_type, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved
from .scope import constant, noted


class ScaledSum(PyLayer):
    """addend + x * scale * factors: the addend a tensor of the shape of x or a row, the scale a row, or one for each
    sample of images, a factor for each sample; None for what is left out."""

    @staticmethod
    def forward(ctx, addend, x, scale, factors, dtype):
        """Return the sum in `dtype`, that of x or float32, in the memory order of images, else dense."""
        ctx.needs = [tensor is not None and not tensor.stop_gradient for tensor in (addend, x, scale)]
        ctx.ordered = channels_last if are_rows(x) else contiguous
        ctx.addend = None if addend is None else (addend.shape, addend.dtype, addend.shape != x.shape)
        ctx.scale = None if scale is None else (scale.shape, scale.dtype)
        x = ctx.ordered(x)
        rows = [row for row in (None if ctx.addend is None or not ctx.addend[2] else addend, scale) if row is not None]
        gates = scale is not None and _is_gate(scale, x)
        columns = numel(rows[0]) // (x.shape[0] if gates else 1) if rows else numel(x) // x.shape[0]
        samples = x.shape[0] if gates or factors is not None else 1
        ctx.sizes = samples, numel(x) // columns // samples, columns, gates
        if addend is not None:
            addend = contiguous(addend) if ctx.addend[2] else ctx.ordered(addend)
        scale = None if scale is None else in_float32(scale)
        out = new_like(x, dtype)
        formats = [data_type(tensor) for tensor in (x if addend is None else addend, x, out)]
        step = 0 if ctx.addend is not None and ctx.addend[2] else columns
        load().scaled_sum(*formats, *ctx.sizes, step, *pointers(addend, x, scale, factors, out))
        ctx.like = x.dtype, x.shape
        keep(ctx, x if ctx.needs[2] else None, scale, factors)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of addend, x and scale in their dtypes."""
        x, scale, factors = saved(ctx)
        dtype, _ = ctx.like
        gradient = ctx.ordered(gradient)
        has_row = ctx.addend is not None and ctx.addend[2]
        is_same = scale is None and factors is None and dtype is gradient.dtype
        samples, _, columns, gates = ctx.sizes
        x_gradient = new_like(gradient, dtype) if ctx.needs[1] and not is_same else None
        scale_sums = new_tensor(FLOAT32, [samples * columns if gates else columns]) if ctx.needs[2] else None
        row_sums = new_tensor(FLOAT32, [columns]) if ctx.needs[0] and has_row else None
        written = x_gradient, scale_sums, row_sums
        if any(tensor is not None for tensor in written):
            formats = DATA_TYPES[dtype], data_type(gradient)
            load().scaled_sum_backward(*formats, *ctx.sizes, *pointers(gradient, x, scale, factors, *written))
        results = []
        if ctx.addend is not None:
            shape, addend_dtype, _ = ctx.addend
            if row_sums is not None:
                results.append(in_dtype(row_sums.reshape(shape), addend_dtype))
            elif addend_dtype is gradient.dtype and ctx.needs[0]:
                results.append(passed_on(gradient))
            else:
                results.append(in_dtype(gradient, addend_dtype) if ctx.needs[0] else None)
        results.append(passed_on(gradient) if ctx.needs[1] and is_same else x_gradient)
        if ctx.scale is not None:
            shape, scale_dtype = ctx.scale
            results.append(None if scale_sums is None else in_dtype(scale_sums.reshape(shape), scale_dtype))
        return tuple(results)


def _is_row(row, x):
    """Return whether x, in the memory order that the sum gives it, lies as rows of the shape of `row`."""
    if row.ndim > x.ndim:
        return False
    order = (0, 2, 3, 1) if are_rows(x) else range(x.ndim)
    aligned = [1] * (x.ndim - row.ndim) + row.shape
    sizes, row_sizes = [x.shape[axis] for axis in order], [aligned[axis] for axis in order]
    if are_rows(x) and math.prod(row_sizes[:3]) > 1:
        return False  # it would have to lie in that order too
    first = next((axis for axis, size in enumerate(row_sizes) if size != 1), None)
    return first is not None and first > 0 and row_sizes[first:] == sizes[first:]


def _is_gate(scale, x):
    """Return whether images lie as [B, H, W, C] and `scale` has a factor for each of B and C, which is no row."""
    return x.ndim == 4 and x.shape[0] > 1 and are_rows(x) and scale.shape == [*x.shape[:2], 1, 1]


def _result_dtype(*tensors):
    """Return what the tensors are promoted to, None for what has no kernel."""
    is_wide, half = False, None
    for tensor in tensors:
        if tensor is None:
            continue
        dtype = tensor.dtype
        if not servable(tensor) or not (dtype is FLOAT32 or half is None or dtype is half):
            return None
        is_wide, half = is_wide or dtype is FLOAT32, half if dtype is FLOAT32 else dtype
    return FLOAT32 if is_wide else half


def sample_factors(drop_path, branch):
    """Return what `drop_path`, which may be None, multiplies each sample of a branch by, [B, 1, ...], or None."""
    if drop_path is None:
        return None
    ones = constant(paddle_names.full, [branch.shape[0]] + [1] * (branch.ndim - 1), 1.0, FLOAT32, CPU)
    factors = noted(drop_path, ones)
    return None if factors is ones else factors


def residual(original, args, kwargs):
    """Kernel of ``residual(x, branch, scale=None, drop_path=None)``; `drop_path` multiplies each sample by a number."""
    x, branch, scale, drop_path = bound(args, kwargs, ("x", "branch", "scale", "drop_path"), (None, None))
    dtype = _result_dtype(x, branch, scale)
    if dtype is None or x.shape != branch.shape or not x.ndim or scale is not None and not _is_row(scale, branch):
        return NotImplemented
    factors = sample_factors(drop_path, branch)
    if scale is None and factors is None and x.dtype is branch.dtype:
        return NotImplemented
    return ScaledSum.apply(x, branch, scale, factors, dtype)


def scale_shift(original, args, kwargs):
    """Kernel of ``scale_shift(x, scale, shift)`` with rows of one size."""
    x, scale, shift = bound(args, kwargs, ("x", "scale", "shift"), ())
    dtype = _result_dtype(x, scale, shift)
    if dtype is None or numel(scale) != numel(shift) or not (_is_row(scale, x) and _is_row(shift, x)):
        return NotImplemented
    return ScaledSum.apply(shift, x, scale, None, dtype)


def _mixed(args, kwargs):
    """Return (the half tensor, the float32 tensor, float32) of a call, None for other tensors."""
    values = bound(args, kwargs, ("x", "y"), ())
    if (values[0].dtype is FLOAT32) == (values[1].dtype is FLOAT32):
        return None
    half, wide = values if values[1].dtype is FLOAT32 else reversed(values)
    return None if _result_dtype(half, wide) is None or not half.ndim else (half, wide)


def add(original, args, kwargs):
    """Kernel of ``add(x, y)`` for a half tensor and a float32 row, or tensor of its shape."""
    tensors = _mixed(args, kwargs)
    if tensors is None or tensors[0].shape != tensors[1].shape and not _is_row(*reversed(tensors)):
        return NotImplemented
    half, wide = tensors
    return ScaledSum.apply(wide, half, None, None, FLOAT32)


def multiply(original, args, kwargs):
    """Kernel of ``multiply(x, y)`` for a half tensor and a float32 row, or for half images and float32 gates."""
    tensors = _mixed(args, kwargs)
    if tensors is None or not (_is_row(*reversed(tensors)) or _is_gate(*reversed(tensors))):
        return NotImplemented
    half, wide = tensors
    return ScaledSum.apply(None, half, wide, None, FLOAT32)


KERNELS = {"residual": residual, "scale_shift": scale_shift}
MIXED_KERNELS = {"add": add, "multiply": multiply}  # what tensors of one format go past
