"""Sums of products that are one batched product of matrices, such as the scores of attention, by its kernel."""

from .linear_map import LinearMap
from .onednn_batched_matmul import matmul
from .onednn_primitives import bound, servable
from .paddle_names import transpose


def einsum(original, args, kwargs):
    """Kernel of ``einsum(operands, equation)`` of two tensors with one axis of their own each, one over which both are
    summed, and any number that they share; the result is a view of the product."""
    operands, equation = bound(args, kwargs, ("operands", "equation"), ())
    if len(operands) != 2 or not servable(*operands):
        return NotImplemented
    left, right = operands
    names, arrow, result = equation.replace(" ", "").partition("->")
    first, _, second = names.partition(",")
    words = first, second, result
    if not arrow or not all(word.isalpha() and len(set(word)) == len(word) for word in words):
        return NotImplemented
    shared = [name for name in result if name in first and name in second]
    rows = [name for name in first if name not in second]
    columns = [name for name in second if name not in first]
    summed = [name for name in first if name in second and name not in result]
    if [len(rows), len(columns), len(summed)] != [1, 1, 1] or sorted(result) != sorted(shared + rows + columns):
        return NotImplemented
    if [len(first), len(second)] != [left.ndim, right.ndim]:
        return NotImplemented  # Paddle words the error
    left = _ordered(left, first, [*shared, *rows, *summed])
    right = _ordered(right, second, [*shared, *summed, *columns])
    product = matmul(None, (left, right), {})
    return product if product is NotImplemented else (_ordered(product, [*shared, *rows, *columns], result),)


def _ordered(tensor, names, wanted):
    """Return the view of a tensor with its axes in another order."""
    order, back = [names.index(name) for name in wanted], [wanted.index(name) for name in names]
    if order == sorted(order):
        return tensor
    return LinearMap.apply(tensor, lambda x: transpose(x, order), lambda gradient: transpose(gradient, back))
