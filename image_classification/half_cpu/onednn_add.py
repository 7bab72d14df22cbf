"""Sums of two tensors and of the gradients of two branches, on bfloat16 or float32; float32 sums, rounded once."""

import math

import paddle
from paddle.autograd import PyLayer

from . import onednn_library as onednn
from .onednn_matmul import sum_rows
from .onednn_memory import channels_last, contiguous, is_channels_last, new_like, ordered_like, settled
from .onednn_primitives import bound, cache, dense, numel, servable


def _describe_add(library, builder, left, right):
    description = library.description(
        "binary", onednn.BINARY_ADD, builder.md(left), builder.md(right), builder.md(left), None
    )
    return description, (onednn.SRC, onednn.SRC_1, onednn.DST)


def sum_of(left, right):
    """Return left + right in the memory order of left, a settled tensor; not recorded by autograd."""
    right = ordered_like(right, left)
    out = new_like(left)
    flat = dense(left.dtype, numel(left))
    cache.get(_describe_add, flat, flat)(left.data_ptr(), right.data_ptr(), out.data_ptr())
    return out


class Add(PyLayer):
    """The sum of two tensors of one shape and dtype. Both gradients are the gradient of the sum, without a copy."""

    @staticmethod
    def forward(ctx, left, right):
        """Return left + right in the memory order of left."""
        ctx.needs = (not left.stop_gradient, not right.stop_gradient)
        return sum_of(settled(left), right)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the sum for each summand that needs one."""
        return tuple(gradient if needed else None for needed in ctx.needs)


def is_row_of(row, x):
    """Return whether a settled x lies in memory as rows of the shape of `row`: a bias, a position embedding."""
    shape, row_shape = x.shape, [1] * (x.ndim - row.ndim) + row.shape
    if not x.is_contiguous():
        shape, row_shape = ([sizes[axis] for axis in (0, 2, 3, 1)] for sizes in (shape, row_shape))
    first = next((axis for axis, size in enumerate(row_shape) if size != 1), None)
    return first is not None and row_shape[first:] == shape[first:]


class AddRow(PyLayer):
    """The sum of a settled tensor and a row that is added to all of its rows."""

    @staticmethod
    def forward(ctx, x, row):
        """Return x + row in the memory order of x."""
        ctx.needs = (not x.stop_gradient, not row.stop_gradient)
        ctx.order = contiguous if x.is_contiguous() else channels_last
        ctx.row_shape = row.shape
        row, out = contiguous(row), new_like(x)
        columns = numel(row)
        layouts = dense(x.dtype, numel(x) // columns, columns), dense(x.dtype, 1, columns)
        cache.get(_describe_add, *layouts)(x.data_ptr(), row.data_ptr(), out.data_ptr())
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the tensor, which is that of the sum, and of the row, its column sums."""
        gradient = ctx.order(gradient)
        row_gradient = None
        if ctx.needs[1]:
            columns = math.prod(ctx.row_shape)
            row_gradient = sum_rows(gradient, numel(gradient) // columns, columns, gradient.dtype)
            row_gradient = row_gradient.reshape(ctx.row_shape)
        return gradient if ctx.needs[0] else None, row_gradient


def add(original, args, kwargs):
    """Kernel of ``add(x, y)`` for tensors of one dtype: of one shape, or a tensor and a row."""
    values = bound(args, kwargs, ("x", "y"), ())
    if values is None:
        return NotImplemented
    left, right = values
    if not servable(left, right):
        return NotImplemented
    if left.shape == right.shape:
        return Add.apply(left, right)
    for x, row in ((left, right), (right, left)):
        if row.ndim <= x.ndim and (x.is_contiguous() or is_channels_last(x)) and is_row_of(row, x):
            return AddRow.apply(x, row)
    return NotImplemented


class Fork(PyLayer):
    """A tensor for each of two branches. Paddle's engine would sum their gradients in one thread, and as rows of
    [B, C, H, W], which the layers before would have to rearrange."""

    @staticmethod
    def forward(ctx, x):
        """Return two views of x; PyLayer takes the tensor itself for a result in place."""
        return paddle.as_strided(x, x.shape, x.strides), paddle.as_strided(x, x.shape, x.strides)

    @staticmethod
    def backward(ctx, left, right):
        """Return the sum of the branches' gradients."""
        if is_channels_last(right):
            left, right = right, left
        return sum_of(settled(left), right)


def fork(original, args, kwargs):
    """Kernel of ``fork(x)``."""
    values = bound(args, kwargs, ("x",), ())
    if values is None or not servable(values[0]) or values[0].stop_gradient or not paddle.is_grad_enabled():
        return NotImplemented
    return Fork.apply(values[0])
