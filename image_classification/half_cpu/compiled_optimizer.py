"""The arithmetic of an optimizer on one float32 tensor in one pass over memory, where its operators take ten."""

import paddle

from .compiled_library import load
from .onednn_primitives import bound, new_tensor, numel

_FLOAT32 = paddle.float32


def _are_plain(*tensors):
    return all(tensor.dtype is _FLOAT32 and tensor.is_contiguous() and numel(tensor) for tensor in tensors)


def adam_direction(original, args, kwargs):
    """Kernel of ``adam_direction(weights, grad, average, square, lacks, betas, epsilon, weight_decay)``."""
    names = ("weights", "grad", "average", "square", "lacks", "betas", "epsilon", "weight_decay")
    values = bound(args, kwargs, names, ())
    if values is None or not _are_plain(*values[:4]):
        return NotImplemented
    *tensors, lacks, betas, epsilon, weight_decay = values
    direction = new_tensor(_FLOAT32, tensors[0].shape)
    constants = *betas, *(1 - beta for beta in betas), *map(float, lacks), epsilon, weight_decay
    load().adam_direction(numel(direction), *constants, *(tensor.data_ptr() for tensor in (*tensors, direction)))
    return direction


def square_sum(original, args, kwargs):
    """Kernel of ``square_sum(x)``."""
    (x,) = args
    if not _are_plain(x):
        return NotImplemented
    out = new_tensor(_FLOAT32, [])
    load().square_sum(numel(x), x.data_ptr(), out.data_ptr())
    return out


def descend(original, args, kwargs):
    """Kernel of ``descend(weights, rate, direction)``."""
    values = bound(args, kwargs, ("weights", "rate", "direction"), ())
    if values is None or not _are_plain(*values):
        return NotImplemented
    weights, rate, direction = values
    load().descend(numel(weights), float(rate), direction.data_ptr(), weights.data_ptr())
    return weights


KERNELS = {"adam_direction": adam_direction, "descend": descend, "square_sum": square_sum}
