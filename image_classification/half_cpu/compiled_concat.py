"""Concatenation in the memory order of the first tensor, and its gradient, on all formats; nothing is rounded."""

import math

from paddle.autograd import PyLayer

from .compiled_library import load
from .onednn_memory import channels_last, contiguous, is_channels_last, new_channels_last
from .onednn_primitives import bound, new_tensor, numel, servable


def _row_bytes(tensor, axis, last):
    """Return the bytes of a part of a dense tensor from one index before `axis` to the next."""
    sizes = [tensor.shape[1]] if last else tensor.shape[axis:]
    return math.prod(sizes) * tensor.element_size()


class Concat(PyLayer):
    """The tensors one after the other along an axis."""

    @staticmethod
    def forward(ctx, axis, *tensors):
        """Return the whole; images that lie as [B, H, W, C] and are joined along C stay so."""
        last = axis == 1 and is_channels_last(tensors[0]) and not tensors[0].is_contiguous()
        ctx.needs = [not tensor.stop_gradient for tensor in tensors]
        ordered = channels_last if last else contiguous
        tensors = tuple(ordered(tensor) for tensor in tensors)
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        out = (new_channels_last if last else new_tensor)(tensors[0].dtype, shape)
        ctx.constants = (axis, last, ordered, [tensor.shape for tensor in tensors])
        step, pointer = _row_bytes(out, axis, last), out.data_ptr()
        for tensor in tensors:
            size = _row_bytes(tensor, axis, last)
            rows = numel(tensor) * tensor.element_size() // size
            load().copy_rows(rows, size, size, step, tensor.data_ptr(), pointer)
            pointer += size
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return each tensor's part of the gradient."""
        axis, last, ordered, shapes = ctx.constants
        gradient = ordered(gradient)
        step, pointer, results = _row_bytes(gradient, axis, last), gradient.data_ptr(), []
        for shape, needed in zip(shapes, ctx.needs, strict=True):
            out = (new_channels_last if last else new_tensor)(gradient.dtype, shape)
            size = _row_bytes(out, axis, last)
            rows = numel(out) * out.element_size() // size
            if needed:
                load().copy_rows(rows, size, step, size, pointer, out.data_ptr())
            pointer += size
            results.append(out if needed else None)
        return tuple(results)


def concat(original, args, kwargs):
    """Kernel of ``concat(tensors, axis)`` for tensors of one dtype."""
    values = bound(args, kwargs, ("x", "axis", "out"), (0, None))
    if values is None or values[2] is not None:
        return NotImplemented
    tensors, axis, _ = values
    if not isinstance(tensors, (list, tuple)) or not tensors or not isinstance(axis, int) or not servable(*tensors):
        return NotImplemented
    first = tensors[0]
    axis = axis + first.ndim if axis < 0 else axis
    if not 0 <= axis < first.ndim or any(tensor.ndim != first.ndim for tensor in tensors):
        return NotImplemented
    if any(tensor.shape[:axis] + tensor.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]
           for tensor in tensors):  # fmt: skip
        return NotImplemented  # Paddle words the error
    return Concat.apply(axis, *tensors)


KERNELS = {"concat": concat}
