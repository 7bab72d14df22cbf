"""Activations and x * a + b in one pass over memory, on all formats; float32 arithmetic, rounded once."""

from paddle.autograd import PyLayer

from .compiled_library import load
from .onednn_memory import new_like, ordered_like, settled
from .onednn_primitives import DATA_TYPES, bound, numel, servable


class Activation(PyLayer):
    """An elementwise function that keeps its input, its result or, being linear, nothing."""

    @staticmethod
    def forward(ctx, x, name, alpha, beta, keeps):
        """Return f(x) in the dtype and memory order of x."""
        x = settled(x)
        out = new_like(x)
        ctx.constants = (name, DATA_TYPES[x.dtype], numel(x), alpha, beta)
        load().activation(*ctx.constants, x.data_ptr(), out.data_ptr())
        if keeps == "nothing":
            ctx.is_contiguous = x.is_contiguous()
        else:
            ctx.save_for_backward(out if keeps == "result" else x)
        ctx.keeps = keeps
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        if ctx.keeps == "nothing":
            data = gradient = settled(gradient)
        else:
            (data,) = ctx.saved_tensor()
            gradient = ordered_like(gradient, data)
        out = new_like(data)
        load().activation_backward(*ctx.constants, data.data_ptr(), gradient.data_ptr(), out.data_ptr())
        return out


def _kernel(name, parameters=(), keeps="input"):
    """Return the kernel of ``name(x, *parameters)``; `parameters` are pairs of a name and its default."""
    names, defaults = ("x", *(parameter for parameter, _ in parameters)), tuple(value for _, value in parameters)

    def kernel(original, args, kwargs):
        values = bound(args, kwargs, names, defaults)
        if values is None or not servable(values[0]) or not all(isinstance(v, (int, float)) for v in values[1:]):
            return NotImplemented
        x, *constants = values
        return Activation.apply(x, name.encode(), *([*map(float, constants), 0.0, 0.0][:2]), keeps)

    return kernel


def scale(original, args, kwargs):
    """Kernel of ``scale(x, scale, bias, bias_after_scale)`` with plain numbers."""
    values = bound(args, kwargs, ("x", "scale", "bias", "bias_after_scale"), (1.0, 0.0, True))
    if values is None or not servable(values[0]) or not all(isinstance(v, (int, float)) for v in values[1:]):
        return NotImplemented
    x, factor, addend, after = values
    return Activation.apply(x, b"scale", float(factor), float(addend if after else addend * factor), "nothing")


def power(original, args, kwargs):
    """Kernel of ``pow(x, 2)``; other powers are left to the reference."""
    values = bound(args, kwargs, ("x", "y", "out"), (None,))
    if values is None or values[2] is not None or not isinstance(values[1], (int, float)) or values[1] != 2:
        return NotImplemented
    return squared(original, values[:1], {})


def clip(original, args, kwargs):
    """Kernel of ``clip(x, min, max)`` with plain numbers."""
    values = bound(args, kwargs, ("x", "min", "max", "out"), (None,))
    if values is None or values[3] is not None or not servable(values[0]):
        return NotImplemented
    x, low, high, _ = values
    if not all(isinstance(value, (int, float)) for value in (low, high)):
        return NotImplemented
    return Activation.apply(x, b"clip", float(low), float(high), "input")


squared = _kernel("square")

KERNELS = {
    "abs": _kernel("abs"),
    "clip": clip,
    "elu": _kernel("elu", (("alpha", 1.0),)),
    "exp": _kernel("exp", keeps="result"),
    "hardswish": _kernel("hardswish"),
    "hardsigmoid": _kernel("hardsigmoid", (("slope", 1 / 6), ("offset", 0.5)), "result"),
    "leaky_relu": _kernel("leaky_relu", (("negative_slope", 0.02),)),
    "mish": _kernel("mish", (("lambda", 20.0),)),
    "pow": power,
    "relu6": _kernel("relu6", keeps="result"),
    "scale": scale,
    "rsqrt": _kernel("rsqrt", keeps="result"),
    "sigmoid": _kernel("sigmoid", keeps="result"),
    "silu": _kernel("silu"),
    "sqrt": _kernel("sqrt", keeps="result"),
    "square": squared,
    "swish": _kernel("silu"),
    "tanh": _kernel("tanh", keeps="result"),
}
