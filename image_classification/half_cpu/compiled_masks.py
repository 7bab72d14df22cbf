"""Choices by a mask, on all formats: nothing is rounded, and a gradient goes to what was chosen."""

import paddle

from .compiled_broadcast import dense_runs, spread
from .compiled_library import load
from .compiled_worth import pays
from .onednn_memory import contiguous
from .onednn_primitives import bound, new_tensor, numel
from .recorded import PyLayer
from .saved import keep, saved

_BOOL = paddle.bool


class Choice(PyLayer):
    """The elements of one tensor where a mask is true, elsewhere those of another; either may be a single number."""

    @staticmethod
    def forward(ctx, mask, yes, no, runs, shape):
        """Return the elements, dense; `runs` says along which axes of the result the mask repeats."""
        ctx.needs = (not yes.stop_gradient, not no.stop_gradient)
        mask, yes, no = contiguous(mask), contiguous(yes), contiguous(no)
        ctx.constants = yes.dtype, runs, shape
        keep(ctx, mask)
        return _chosen(mask, yes, no, *ctx.constants)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients, zero where the other one was chosen."""
        (mask,) = saved(ctx)
        gradient = contiguous(gradient)
        for_yes = _chosen(mask, gradient, None, *ctx.constants) if ctx.needs[0] else None
        for_no = _chosen(mask, None, gradient, *ctx.constants) if ctx.needs[1] else None
        return None, for_yes, for_no


def _chosen(mask, yes, no, dtype, runs, shape):
    """Return one of two tensors by a mask; None stands for zeros."""
    out = new_tensor(dtype, shape)
    sources = [(0, None) if one is None else (int(one.ndim > 0), one.data_ptr()) for one in (yes, no)]
    load().pick(out.element_size(), *spread(runs), mask.data_ptr(), *sources[0], *sources[1], out.data_ptr())
    return out


def _choice(mask, yes, no, shape):
    """Return the choice in the shape of the tensors, or NotImplemented."""
    whole = [one for one in (yes, no) if one.ndim]
    if mask.dtype is not _BOOL or yes.dtype is not no.dtype or not whole or any(one.shape != shape for one in whole):
        return NotImplemented
    if any(not one.ndim and not one.stop_gradient for one in (yes, no)) or not pays(whole[0], numel(whole[0])):
        return NotImplemented
    runs = dense_runs(shape, mask.shape)
    return NotImplemented if runs is None or len(runs) > 4 else Choice.apply(mask.detach(), yes, no, runs, shape)


def where(original, args, kwargs):
    """Kernel of ``where(condition, x, y)`` for tensors of one format."""
    mask, x, y = bound(args, kwargs, ("condition", "x", "y"), ())
    return _choice(mask, x, y, x.shape)


def masked_fill(original, args, kwargs):
    """Kernel of ``masked_fill(x, mask, value)`` for a number of the format of x."""
    x, mask, value = bound(args, kwargs, ("x", "mask", "value"), ())
    if value.ndim:
        return NotImplemented
    return _choice(mask, value, x, x.shape)


KERNELS = {"masked_fill": masked_fill, "where": where}
