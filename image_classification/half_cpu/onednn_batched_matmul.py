"""Batches of matrix products, forward and backward, on tensors of any format that has kernels."""

import math

from .arguments import FLOAT32
from .onednn_matmul import Linear, multiply, sum_rows
from .onednn_matrices import View, view
from .onednn_memory import in_dtype
from .onednn_primitives import Layout, bound, new_tensor, numel, servable
from .recorded import PyLayer
from .saved import keep, saved


class BatchedMatmul(PyLayer):
    """left [..., M, K] @ right [..., K, N], each optionally transposed. The leading axes are equal, or one factor is a
    single matrix, whose gradient is the sum of those of all products, rounded once."""

    @staticmethod
    def forward(ctx, left, right, leading, *transposed):
        """Return [*leading, M, N] in the common dtype; `transposed`: whether the left one is, and the right one."""
        ctx.leading, ctx.transposed = leading, transposed
        keep(ctx, left, right)
        ctx.needs = (not left.stop_gradient, not right.stop_gradient)
        first, second = _factors(ctx, left, right)
        out = new_tensor(left.dtype, [*leading, first.layout.shape[-2], second.layout.shape[-1]])
        multiply(first, second, view(out))
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of both factors."""
        factors = saved(ctx)
        left, right = _factors(ctx, *factors)
        products = (view(gradient), right.transposed), (left.transposed, view(gradient))
        return tuple(
            _gradient_of(ctx, index, factors[index], *products[index]) if ctx.needs[index] else None for index in (0, 1)
        )


def _factors(ctx, *factors):
    """Return the views of both factors as they are multiplied, with as many axes."""
    rank = len(ctx.leading) + 2
    views = [_with_axes(view(factor), rank) for factor in factors]
    return [one.transposed if turned else one for one, turned in zip(views, ctx.transposed, strict=True)]


def _with_axes(matrices, rank):
    """Return a view with axes of size one in front, to have so many."""
    data_type, shape, strides = matrices.layout
    more = rank - len(shape)
    if not more:
        return matrices
    return View(matrices.pointer, Layout(data_type, (1,) * more + shape, (0,) * more + strides), matrices.tensor)


def _gradient_of(ctx, index, factor, left, right):
    """Return the gradient of a factor, the sum of left @ right where it is a single matrix."""
    is_single = factor.shape[:-2] != ctx.leading
    shape = [*ctx.leading, *factor.shape[-2:]] if is_single else factor.shape
    found = new_tensor(FLOAT32 if is_single else factor.dtype, shape)
    out = view(found)
    multiply(left, right, out.transposed if ctx.transposed[index] else out)
    if not is_single:
        return found
    count = math.prod(ctx.leading)
    return in_dtype(sum_rows(found, count, numel(found) // count, FLOAT32), factor.dtype).reshape(factor.shape)


def matmul(original, args, kwargs, rounds=False):
    """Kernel of ``matmul(x, y, transpose_x=False, transpose_y=False)``: equal leading axes, or a single
    matrix; it takes a float32 right one with a half x, rounded to its format, where it `rounds`."""
    values = bound(args, kwargs, ("x", "y", "transpose_x", "transpose_y"), (False, False))
    left, right, transpose_left, transpose_right = values
    if not servable(left) or not servable(right) or right.ndim < 2 or left.ndim < 2:
        return NotImplemented
    if right.dtype is not left.dtype and (not rounds or right.ndim > 2 or transpose_left):
        return NotImplemented
    if right.ndim == 2 and not transpose_left:
        fits = left.shape[-1] == right.shape[-1 if transpose_right else 0]
        return Linear.apply(left, right, None, bool(transpose_right)) if fits else NotImplemented
    leading = _leading(left.shape[:-2], right.shape[:-2])
    if leading is None:
        return NotImplemented
    if left.shape[-2 if transpose_left else -1] != right.shape[-1 if transpose_right else -2]:
        return NotImplemented  # Paddle words the error
    return BatchedMatmul.apply(left, right, leading, bool(transpose_left), bool(transpose_right))


def bmm(original, args, kwargs):
    """Kernel of ``bmm(x, y)``: as many matrices each."""
    values = bound(args, kwargs, ("x", "y"), ())
    if not all(one.ndim == 3 and one.shape[0] == values[0].shape[0] for one in values):
        return NotImplemented  # Paddle words the error
    return matmul(original, values, {})


def _leading(*leading):
    """Return the leading axes of a product of factors with these, of which one may be a single matrix, or None."""
    few, many = sorted(leading, key=lambda sizes: (len(sizes), math.prod(sizes)))
    return many if few == many or math.prod(few) == 1 else None
