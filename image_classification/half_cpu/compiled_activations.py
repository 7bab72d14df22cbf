"""Activations and x * a + b in one pass over memory, on all formats; float32 arithmetic, rounded once."""

import functools

from .compiled_library import load
from .onednn_memory import new_like, ordered_like, settled
from .onednn_primitives import bound, data_type, numel, servable
from .recorded import PyLayer
from .saved import own_result, save, saved


class Activation(PyLayer):
    """An elementwise function that keeps its input, its result or, being linear, nothing."""

    @staticmethod
    def forward(ctx, x, there, back, keeps):
        """Return f(x) in the dtype and memory order of x: `there` takes pointers to x and the result, `back` to what is
        kept, the result's gradient and that of x."""
        x = settled(x)
        out = new_like(x)
        there(x.data_ptr(), out.data_ptr())
        if keeps != "nothing":
            save(ctx, own_result(out) if keeps == "result" else x)
        ctx.back, ctx.keeps = back, keeps
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        if ctx.keeps == "nothing":
            data = gradient = settled(gradient)
        else:
            (data,) = saved(ctx)
            gradient = ordered_like(gradient, data)
        out = new_like(data)
        ctx.back(data.data_ptr(), gradient.data_ptr(), out.data_ptr())
        return out


def _applied(x, name, alpha, beta, keeps):
    """Return the function of this name in `cpp/activations.h`."""
    kernels, constants = load(), (name, data_type(x), numel(x), alpha, beta)
    there, back = (functools.partial(each, *constants) for each in (kernels.activation, kernels.activation_backward))
    return Activation.apply(x, there, back, keeps)


def _kernel(name, parameters=(), keeps="input"):
    """Return the kernel of ``name(x, *parameters)``; `parameters` are pairs of a name and its default."""
    names, defaults = ("x", *(parameter for parameter, _ in parameters)), tuple(value for _, value in parameters)
    function = name.encode()

    def kernel(original, args, kwargs):
        values = bound(args, kwargs, names, defaults)
        if not servable(values[0]):
            return NotImplemented
        constants = [0.0, 0.0]  # what a function of fewer does not read
        for index, value in enumerate(values[1:3]):
            if not isinstance(value, (int, float)):
                return NotImplemented
            constants[index] = float(value)
        return _applied(values[0], function, constants[0], constants[1], keeps)

    return kernel


def scale(original, args, kwargs):
    """Kernel of ``scale(x, scale, bias, bias_after_scale)`` with plain numbers."""
    x, factor, addend, after = bound(args, kwargs, ("x", "scale", "bias", "bias_after_scale"), (1.0, 0.0, True))
    if not servable(x) or not all(isinstance(v, (int, float)) for v in (factor, addend, after)):
        return NotImplemented
    return _applied(x, b"scale", float(factor), float(addend if after else addend * factor), "nothing")


def power(original, args, kwargs):
    """Kernel of ``pow(x, y)`` for whole numbers and quarters up to 8; other powers are left to the reference."""
    x, exponent = bound(args, kwargs, ("x", "y"), ())
    if not isinstance(exponent, (int, float)) or not servable(x):
        return NotImplemented
    if exponent == 2:
        return squared(original, (x,), {})
    if abs(exponent) > 8 or exponent * 4 % 1 or exponent in (0, 1):
        return NotImplemented
    return _applied(x, b"power", float(exponent), 0.0, "input")


def clip(original, args, kwargs):
    """Kernel of ``clip(x, min, max)`` with plain numbers."""
    x, low, high = bound(args, kwargs, ("x", "min", "max"), ())
    if not servable(x):
        return NotImplemented
    if not all(isinstance(value, (int, float)) for value in (low, high)) or not low <= high:
        return NotImplemented  # Paddle words the error
    return _applied(x, b"clip", float(low), float(high), "input")


squared = _kernel("square")

KERNELS = {
    "abs": _kernel("abs"),
    "celu": _kernel("celu", (("alpha", 1.0),)),
    "clip": clip,
    "cos": _kernel("cos"),
    "elu": _kernel("elu", (("alpha", 1.0),)),
    "exp": _kernel("exp", keeps="result"),
    "hardswish": _kernel("hardswish"),
    "hardsigmoid": _kernel("hardsigmoid", (("slope", 1 / 6), ("offset", 0.5)), "result"),
    "hardtanh": _kernel("hardtanh", (("t_min", 0.0), ("t_max", 24.0))),  # a rounded bound may lie within
    "leaky_relu": _kernel("leaky_relu", (("negative_slope", 0.02),)),
    "log": _kernel("log"),
    "logsigmoid": _kernel("logsigmoid"),
    "mish": _kernel("mish", (("lambda", 20.0),)),
    "pow": power,
    "relu6": _kernel("relu6", keeps="result"),
    "scale": scale,
    "rsqrt": _kernel("rsqrt", keeps="result"),
    "selu": _kernel("selu", (("scale", 1.0507009873554805), ("alpha", 1.6732632423543772))),
    "sigmoid": _kernel("sigmoid", keeps="result"),
    "silu": _kernel("silu"),
    "sin": _kernel("sin"),
    "softplus": _kernel("softplus", (("beta", 1.0), ("threshold", 20.0))),
    "softsign": _kernel("softsign"),
    "sqrt": _kernel("sqrt", keeps="result"),
    "square": squared,
    "swish": _kernel("silu"),
    "tanh": _kernel("tanh", keeps="result"),
}
