"""Sums of two tensors and of the gradients of two branches, products with a row, on bfloat16 or float32.

The arithmetic is float32, rounded once. A row has the shape of a tensor's last axes, in its memory order: a bias, a
position embedding, the factors of the channels.
"""

import math

import paddle

from . import compiled, paddle_names
from . import onednn_library as onednn
from .onednn_batched_matmul import matmul
from .onednn_matmul import sum_rows
from .onednn_memory import (
    channels_last,
    contiguous,
    is_channels_last,
    is_settled,
    new_like,
    ordered_like,
    passed_on,
    settled,
)
from .onednn_primitives import bound, cache, dense, numel, servable
from .recorded import PyLayer
from .saved import keep, saved


@compiled.counterpart(compiled.binary)
def _describe(library, builder, algorithm, left, right):
    description = library.description("binary", algorithm, builder.md(left), builder.md(right), builder.md(left), None)
    return description, (onednn.SRC, onednn.SRC_1, onednn.DST)


def _combine(algorithm, left, right):
    """Return a settled tensor combined with one of the same memory order, or with a dense row."""
    out = new_like(left)
    columns = numel(right)
    layouts = dense(left.dtype, numel(left) // columns, columns), dense(left.dtype, 1, columns)
    cache.get(_describe, algorithm, *layouts)(left.data_ptr(), right.data_ptr(), out.data_ptr())
    return out


def sum_of(left, right):
    """Return left + right in the memory order of left, a settled tensor; not recorded by autograd."""
    return _combine(onednn.BINARY_ADD, left, ordered_like(right, left))


class Add(PyLayer):
    """The sum of two tensors of one shape and dtype."""

    @staticmethod
    def forward(ctx, left, right):
        """Return left + right in the memory order of left."""
        ctx.needs = (not left.stop_gradient, not right.stop_gradient)
        return sum_of(settled(left), right)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the sum for each summand that needs one."""
        left, right = ctx.needs
        gradient = settled(gradient)
        return passed_on(gradient) if left else None, passed_on(gradient) if right else None


def is_row_of(row, x):
    """Return whether a settled x lies in memory as rows of the shape of `row`."""
    shape, row_shape = x.shape, [1] * (x.ndim - row.ndim) + row.shape
    if not x.is_contiguous():
        if row_shape[1] != 1 and row_shape[2:] != [1, 1]:
            return False  # the row itself lies in another order
        shape, row_shape = ([sizes[axis] for axis in (0, 2, 3, 1)] for sizes in (shape, row_shape))
    first = next((axis for axis, size in enumerate(row_shape) if size != 1), None)
    return first is not None and row_shape[first:] == shape[first:]


def _row_sum(tensor, shape):
    """Return the sum of the rows of a settled tensor, in the shape of the row."""
    columns = math.prod(shape)
    return sum_rows(tensor, numel(tensor) // columns, columns, tensor.dtype).reshape(shape)


class WithRow(PyLayer):
    """Each row of a settled tensor plus a row, which keeps nothing, or times a row."""

    @staticmethod
    def forward(ctx, x, row, algorithm):
        """Return the result in the memory order of x."""
        ctx.needs = (not x.stop_gradient, not row.stop_gradient)
        ctx.order = contiguous if x.is_contiguous() else channels_last
        ctx.multiplies = algorithm == onednn.BINARY_MUL
        if ctx.multiplies:
            keep(ctx, x, row)
        else:
            ctx.row_shape = row.shape
        return _combine(algorithm, x, contiguous(row))

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of the tensor and of the row, the column sums of what reaches its elements."""
        gradient = ctx.order(gradient)
        x, row = saved(ctx) if ctx.multiplies else (None, None)
        x_gradient = row_gradient = None
        if ctx.needs[0]:
            x_gradient = passed_on(gradient) if row is None else _combine(onednn.BINARY_MUL, gradient, contiguous(row))
        if ctx.needs[1]:
            reaching = gradient if x is None else _combine(onednn.BINARY_MUL, gradient, x)
            row_gradient = _row_sum(reaching, ctx.row_shape if row is None else row.shape)
        return x_gradient, row_gradient


def add(original, args, kwargs):
    """Kernel of ``add(x, y)`` for tensors of one dtype: of one shape, or a tensor and a row."""
    left, right = bound(args, kwargs, ("x", "y"), ())
    if not servable(left, right):
        return NotImplemented
    return Add.apply(left, right) if left.shape == right.shape else _with_row(onednn.BINARY_ADD, left, right)


def multiply(original, args, kwargs):
    """Kernel of ``multiply(x, y)`` for a tensor and a row of one dtype, or a column and a row: an outer product."""
    left, right = bound(args, kwargs, ("x", "y"), ())
    if not servable(left, right) or left.shape == right.shape:
        return NotImplemented
    if left.ndim == right.ndim == 2 and left.shape[1] == right.shape[0] == 1:
        return matmul(original, (left, right), {})
    return _with_row(onednn.BINARY_MUL, left, right)


def _with_row(algorithm, left, right):
    """Return the sum or product of the tensor and the row among two tensors."""
    for x, row in ((left, right), (right, left)):
        if row.ndim <= x.ndim and is_settled(x) and is_row_of(row, x):
            return WithRow.apply(x, row, algorithm)
    return NotImplemented


class Fork(paddle.autograd.PyLayer):
    """Two views of a tensor whose gradients are summed by a kernel, or with create_graph=True by Paddle."""

    @staticmethod
    def forward(ctx, x, note_alone):
        """Return two views of x; PyLayer takes the tensor itself for a result in place."""
        ctx.set_materialize_grads(False)
        ctx.note_alone = note_alone
        axes = list(range(x.ndim))  # unlike paddle.as_strided, a transposition begins where a slice of a tensor does
        return paddle_names.transpose(x, axes), paddle_names.transpose(x, axes)

    @staticmethod
    def backward(ctx, left, right):
        """Return the sum of the gradients; that of a view which nothing read is None."""
        if left is None or right is None:
            ctx.note_alone()
            return right if left is None else left
        if paddle.is_grad_enabled():
            return left + right  # create_graph=True: the sum has a gradient itself
        if is_channels_last(right):
            left, right = right, left
        return sum_of(settled(left), right)


def fork(x, note_alone):
    """Return two views of x, or x twice where there is no kernel for the sum of its gradients.

    `note_alone()` is called by a backward pass in which one of the views has no gradient.
    """
    return Fork.apply(x, note_alone) if servable(x) else (x, x)
