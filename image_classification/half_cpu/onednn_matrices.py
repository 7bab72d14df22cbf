"""Matrices in memory as views with strides, and which of them oneDNN 3.6 takes for others."""

import functools
import math
from typing import Any, NamedTuple

import paddle

from .onednn_memory import copy_layout
from .onednn_primitives import CACHE_SIZE, ELEMENT_SIZE, Layout, dense, dense_strides, layout, new_tensor

_UINT8 = paddle.uint8


class View(NamedTuple):
    """Where an operand begins in memory and how it lies there; the memory stays as long as the view does."""

    pointer: int
    layout: Layout
    tensor: Any = None  # whose memory it is

    @property
    def is_transposed(self):
        """Whether the elements of a column, not those of a row, lie side by side."""
        strides = self.layout.strides
        return strides[-1] != 1 and strides[-2] == 1

    def part(self, *ranges):
        """Return the view of a part: one (first, count), or None for all, for each of the first axes."""
        data_type, shape, strides = self.layout
        pointer, sizes = self.pointer, list(shape)
        for axis, given in enumerate(ranges):
            if given is not None:
                pointer += given[0] * strides[axis] * ELEMENT_SIZE[data_type]
                sizes[axis] = given[1]
        return View(pointer, Layout(data_type, tuple(sizes), strides), self.tensor)

    @property
    def transposed(self):
        """The same memory with the last two axes exchanged."""
        return View(self.pointer, _transposed(self.layout), self.tensor)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _transposed(matrices):
    data_type, shape, strides = matrices
    return Layout(data_type, (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def view(tensor):
    """Return the view of a tensor as it lies in memory."""
    return View(tensor.data_ptr(), layout(tensor), tensor)


def matrix(tensor, rows, columns):
    """Return the view of a dense tensor as a matrix."""
    return View(tensor.data_ptr(), dense(tensor.dtype, rows, columns), tensor)


def folded(*operands):
    """Return views of the operands of a product with as few leading axes as name the same matrices: oneDNN 3.6 writes
    beyond its memory where single axes follow others and one factor is the same for all, and searches for the order of
    four axes only, see `is_misread`."""
    layouts = _folded(*(operand.layout for operand in operands))
    return [one._replace(layout=layout) for one, layout in zip(operands, layouts, strict=True)]


@functools.lru_cache(maxsize=CACHE_SIZE)
def _folded(*layouts):
    axes: list[list[tuple[int, int]]] = []  # (size, stride) of each operand
    for axis in zip(*(zip(one.shape[:-2], one.strides, strict=False) for one in layouts), strict=True):
        if all(size == 1 for size, _ in axis):
            continue
        pairs = list(zip(axes[-1], axis, strict=True)) if axes else []
        if pairs and all(_is_one_axis(*pair) for pair in pairs):
            axes[-1] = [(before * size, stride) for (before, _), (size, stride) in pairs]
        else:
            axes.append(list(axis))
    axes = axes or [[(1, math.prod(one.shape[-2:])) for one in layouts]]
    found = []
    for one, own in zip(layouts, zip(*axes, strict=True), strict=True):
        sizes, strides = zip(*own, strict=True)
        found.append(Layout(one.data_type, (*sizes, *one.shape[-2:]), (*strides, *one.strides[-2:])))
    return found


def _is_one_axis(outer, inner):
    (count, step), (size, stride) = outer, inner
    return count == size == 1 or step == size * stride


def without_odd_strides(matrices):
    """Return the layout with strides for axes of size one as a dense tensor has them. There any would do, but oneDNN
    3.6 takes that of a single row for the length of rows, and then so do products that are built later."""
    data_type, shape, strides = matrices
    if strides is None or 1 not in shape:
        return matrices
    steps: list[int] = []
    step = 1
    for size, own in zip(reversed(shape), reversed(strides), strict=True):
        steps.insert(0, step if size == 1 else own)
        step = max(step, size * steps[0])
    return Layout(data_type, shape, tuple(steps))


def is_misread(matrices):
    """Return whether oneDNN 3.6 may take other numbers for those of strided matrices: where they are single rows or
    columns, or lie with gaps between samples and heads, of which some sizes meet in its search for the order. Where
    neither rows nor columns lie side by side it has its slow reference code."""
    _, shape, strides = matrices
    if 1 in shape[-2:]:
        steps = zip(shape, strides, dense_strides(shape), strict=True)
        return any(size > 1 and step != dense_step for size, step, dense_step in steps)
    if 1 not in strides[-2:]:
        return True
    if len(shape) > 4:
        return strides != dense_strides(shape)
    if len(shape) != 4:
        return False
    if 1 in shape[:2]:
        return any(size > 1 and step != math.prod(shape[2:]) for size, step in zip(shape[:2], strides[:2], strict=True))
    rows, columns = (2, 3) if strides[2] > strides[3] else (3, 2)
    samples, heads, whole = strides[0], strides[1], shape[rows] * strides[rows]
    if heads == whole:
        return samples != shape[1] * whole
    is_dense = strides[rows] == shape[1] * heads
    return heads != shape[columns] or samples != whole or not is_dense and samples == shape[0] * shape[1] * heads


def well_read(operand):
    """Return an operand, or the view of a dense copy."""
    if not is_misread(operand.layout):
        return operand
    data_type, shape, _ = operand.layout
    plain = Layout(data_type, shape, dense_strides(shape))
    copy = new_tensor(_UINT8, [math.prod(shape) * ELEMENT_SIZE[data_type]])
    copy_layout(operand.layout, plain, operand.pointer, copy.data_ptr())
    return View(copy.data_ptr(), plain, copy)
