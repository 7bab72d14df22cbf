"""Functions of two tensors of which one may be broadcast, and their gradients, on all formats: float32, rounded once.

What a gradient is summed over, because it repeats the small tensor, is float32 until the sum.
"""


from .arguments import FLOAT32
from .compiled_broadcast import combined, in_order_of, new_small, operands, plan, sum_over, together
from .compiled_library import load
from .compiled_worth import asks_gradient, pays
from .linear_map import reshaped
from .onednn_memory import is_settled, new_like
from .onednn_primitives import bound, data_type, numel, pointers, servable
from .paddle_names import reshape
from .recorded import PyLayer
from .saved import keep, saved

# function -> its gradients by the large and by the small tensor
SLOPES = {
    b"maximum": (b"greater", b"less"),
    b"minimum": (b"less", b"greater"),
    b"prelu": (b"prelu", b"prelu_weight"),
    b"sigmoid_cross_entropy": (b"sigmoid_cross_entropy", None),
    b"divergence": (b"divergence", None),
    b"smooth_l1": (b"smooth_l1", None),
}


class Pair(PyLayer):
    """A function of a tensor and of a smaller one, for which it is settled, or of one of its shape."""

    @staticmethod
    def forward(ctx, large, small, name, runs):
        """Return the result in the memory order of the large tensor."""
        ctx.needs = (not large.stop_gradient, not small.stop_gradient)
        large, ordered, aligned = together(large, small)
        ctx.constants = (name, runs, small.shape, ordered)
        keep(ctx, large, aligned)
        return combined(name, large, aligned, runs)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of both tensors; labels get none."""
        name, runs, shape, ordered = ctx.constants
        gradient = ordered(gradient)
        large, small = saved(ctx)
        by_large, by_small = SLOPES[name]
        large_gradient = _slope(by_large, large, small, gradient, runs, large.dtype) if ctx.needs[0] else None
        if not ctx.needs[1] or by_small is None:
            return large_gradient, None
        if not any(repeated for _, repeated in runs):
            small_gradient = _slope(by_small, large, small, gradient, runs, large.dtype)
            return large_gradient, small_gradient if large.shape == shape else reshape(small_gradient, shape)
        wide = _slope(by_small, large, small, gradient, runs, FLOAT32)
        return large_gradient, sum_over(wide, None, runs, new_small(large, shape))


def _slope(name, large, small, gradient, runs, dtype):
    """Return the gradient of one of the tensors for each element of the large one."""
    out = new_like(large, dtype)
    load().slope(name, data_type(large), data_type(out), *operands(runs), *pointers(large, small, gradient, out))
    return out


def _pair(name, large, small):
    """Return the function of two tensors, or NotImplemented where neither the shapes nor the memory orders suit."""
    if not servable(large, small) or not pays(large, numel(large)):
        return NotImplemented
    if large.shape == small.shape:
        return Pair.apply(large, small, name, ((numel(large), False),))
    if not is_settled(large):
        return NotImplemented
    runs = plan(large, small.shape)
    if runs is None or len(runs) > 4 or in_order_of(small, large) is None:
        return NotImplemented
    return Pair.apply(large, small, name, runs)


def _extremum(name):
    def kernel(original, args, kwargs):
        values = bound(args, kwargs, ("x", "y"), ())
        if values[0].dtype is FLOAT32 and not asks_gradient(*values):
            return NotImplemented  # Paddle's is as fast forward
        return _pair(name, *(values if numel(values[0]) >= numel(values[1]) else reversed(values)))

    return kernel


def prelu(original, args, kwargs):
    """Kernel of ``prelu(x, weight, data_format, mode)`` with one slope, or one for each channel."""
    x, weight, data_format, mode = bound(args, kwargs, ("x", "alpha", "data_format", "mode"), ("NCHW", "all"))
    if mode == "channel" and data_format == "NCHW" and x.ndim > 1 and weight.shape == [x.shape[1]]:
        weight = reshaped(weight, [-1] + [1] * (x.ndim - 2))
    elif mode != "all" or numel(weight) != 1:
        return NotImplemented
    return _pair(b"prelu", x, weight)


def _loss(function, names, constants):
    """Return the kernel of a loss for each element, with these values of its further arguments, for targets without
    gradient."""

    def kernel(original, args, kwargs):
        values = bound(args, kwargs, names, constants)
        if tuple(values[2:]) != constants:
            return NotImplemented
        x, target, *_ = values
        if x.shape != target.shape or not target.stop_gradient:
            return NotImplemented
        return _pair(function, x, target)

    return kernel


KERNELS = {
    "huber_loss": _loss(b"smooth_l1", ("input", "label", "delta"), (1.0,)),
    "kldiv_loss": _loss(b"divergence", ("x", "label", "reduction", "log_target"), ("none", False)),
    "maximum": _extremum(b"maximum"),
    "minimum": _extremum(b"minimum"),
    "prelu": prelu,
    "sigmoid_cross_entropy_with_logits": _loss(
        b"sigmoid_cross_entropy", ("x", "label", "pos_weight", "normalize", "ignore_index"), (None, False, -100)
    ),
}
