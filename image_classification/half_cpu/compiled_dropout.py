"""Dropout in one pass over memory, with random numbers of its own: Paddle's are noted one by one in one thread."""

import paddle

from . import paddle_names
from .arguments import CPU
from .compiled_library import load
from .onednn_memory import contiguous
from .onednn_primitives import bound, data_type, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved
from .scope import noted

_INT32, _UINT8 = paddle.int32, paddle.uint8
_LARGEST = (1 << 31) - 1


class Dropout(PyLayer):
    """Elements left out at random and the others scaled. One byte is kept of each: whether it stayed."""

    @staticmethod
    def forward(ctx, x, p):
        """Return x / (1 - p), or 0 with probability p, exact to 2^-32."""
        x = contiguous(x)
        out, kept = new_tensor(x.dtype, x.shape), new_tensor(_UINT8, x.shape)
        # Two numbers of Paddle's generator begin a stream: its state is that of a run, and of what is computed again.
        key = noted(paddle_names.randint, -_LARGEST - 1, _LARGEST, [2], _INT32, CPU)
        below = min(round(p * (1 << 32)), (1 << 32) - 1)
        ctx.factor = 1 / (1 - p)
        load().dropout(data_type(x), numel(x), key.data_ptr(), below, ctx.factor, *pointers(x, kept, out))
        keep(ctx, kept)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        (kept,) = saved(ctx)
        gradient = contiguous(gradient)
        out = new_tensor(gradient.dtype, gradient.shape)
        load().dropout_backward(data_type(gradient), numel(gradient), ctx.factor, *pointers(kept, gradient, out))
        return out


def dropout(original, args, kwargs):
    """Kernel of ``dropout(x, seed_tensor, p, is_test, mode, seed, fix_seed)`` in training, without a given seed."""
    values = bound(args, kwargs, ("x", "seed_tensor", "p", "is_test", "mode", "seed", "fix_seed"), ())
    if not servable(values[0]):
        return NotImplemented
    x, given, p, is_test, mode, _, fixed = values
    if given is not None or fixed or is_test or mode != "upscale_in_train":
        return NotImplemented
    if not isinstance(p, float) or not 0 < p < 1:
        return NotImplemented
    return Dropout.apply(x, p)


KERNELS = {"dropout": dropout}
