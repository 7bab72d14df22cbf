"""Views whose gradients are copied by vectors: other shapes, and parts of a tensor, on all formats; nothing is rounded.

The view itself costs nothing. But a gradient comes back in the memory order of whatever read the view, such as that of
images, and Paddle's own gradient of a reshape copies it element by element; that of a part pads it so.
"""

import paddle

from . import op_names, paddle_names
from .arguments import CPU
from .compiled_concat import is_view
from .compiled_concat import reshape as copied
from .compiled_places import items
from .compiled_worth import LARGE, asks_gradient
from .linear_map import LinearMap
from .onednn_memory import contiguous, reorder_like
from .onednn_primitives import bound, numel, servable
from .scope import noted


def _pays(x):
    """Return whether the gradient of a view of x is large enough, and will be asked for."""
    return asks_gradient(x) and numel(x) >= LARGE and servable(x)


def reshape(original, args, kwargs):
    """Kernel of ``reshape(x, shape)``: a copy where a strided tensor needs one, else a view."""
    result = copied(original, args, kwargs)
    if result is not NotImplemented:
        return result
    x, shape = bound(args, kwargs, ("x", "shape"), ())
    if not _pays(x):
        return NotImplemented
    own = x.shape

    def back(gradient):  # copied only where no strides say that
        return paddle_names.reshape(gradient if is_view(gradient, own) else contiguous(gradient), own)

    return LinearMap.apply(x, lambda x: original(x, shape), back)


def flatten(original, args, kwargs):
    """Kernel of ``flatten(x, start_axis, stop_axis)``."""
    x, first, last = bound(args, kwargs, ("x", "start_axis", "stop_axis"), ())
    if not _pays(x) or not all(isinstance(axis, int) for axis in (first, last)):
        return NotImplemented
    first, last = first % x.ndim, last % x.ndim + 1
    shape = x.shape
    return reshape(paddle_names.reshape, (x, [*shape[:first], -1, *shape[last:]]), {})


def get_item(original, args, kwargs):
    """Kernel of ``x[index]``: one tensor of places, or whole numbers, ranges without a step, an ellipsis, new axes."""
    if kwargs or len(args) != 2:
        return NotImplemented
    x, index = args
    result = items(x, index)
    if result is not NotImplemented or not _pays(x):
        return result
    if not all(map(_is_basic, index if isinstance(index, tuple) else (index,))):
        return NotImplemented
    with paddle.no_grad():
        part = original(x, index)
    if not part.ndim or not numel(part):
        return NotImplemented
    shape = x.shape

    def back(gradient):  # zero beside the part
        out = noted(paddle_names.full, shape, 0.0, gradient.dtype, CPU)
        reorder_like(gradient, original(out, index))
        return out

    return LinearMap.apply(x, lambda x: original(x, index), back)


def _is_basic(entry):
    if isinstance(entry, slice):
        return entry.step in (None, 1) and all(type(end) in (int, type(None)) for end in (entry.start, entry.stop))
    return type(entry) is int or entry is None or entry is Ellipsis


KERNELS = {"reshape": reshape, "flatten": flatten, op_names.GET_ITEM: get_item}
