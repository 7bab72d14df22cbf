"""The arithmetic of an optimizer on one tensor in one pass over memory.

Paddle's adamw_ needs twice the time of memory; the rules of LAMB, and those of half weights, are ten operators each.
"""

import contextlib
from math import inf, prod

from . import paddle_names
from .arguments import FLOAT32, FLOAT64, HALF_NAMES
from .compiled_library import load, numbers
from .onednn_primitives import DATA_TYPES, Declined, bound, data_type, is_known, new_tensor, numel, pointers
from .scope import active
from .updates import NONE


def _are_plain(*tensors, dtype=FLOAT32):
    for tensor in tensors:
        if tensor.dtype is not dtype or not tensor.is_dense() or not tensor.is_contiguous() or 0 in tensor.shape:
            return False
    return True


def _served(names, gradient=1):
    """Return a decorator for the kernel of an operator that updates its first tensor by its gradient, argument number
    `gradient`. Where the kernel declines, the gradient is widened and multiplied before Paddle's operator sees it."""

    def decorate(kernel):
        def served(original, args, kwargs):
            update = active.update or NONE
            with contextlib.suppress(Declined):
                written = kernel(update, *bound(args, kwargs, names, ()))
                if written:
                    paddle_names.bump_version(args[0])
                    return written
            if args[0].dtype is FLOAT32 and args[gradient].dtype is not FLOAT32:
                wide = paddle_names.scale(paddle_names.cast(args[gradient], FLOAT32), update.factor, 0.0, True)
                return original(*args[:gradient], wide, *args[gradient + 1 :], **kwargs)
            if update.factor != 1:
                _multiply(args[gradient], update.factor)
            return NotImplemented

        return served

    return decorate


def _multiply(gradient, factor):
    wide = paddle_names.scale(paddle_names.cast(gradient, FLOAT32), factor, 0.0, True)
    paddle_names.assign_out_(paddle_names.cast(wide, gradient.dtype), gradient)


def _run(name, update, param, gradient, rate, state, *constants):
    """Call a rule of the library: constants, then the state's tensors between gradient and weights."""
    half = update.half_of(param)
    if half is not None and not (param.dtype is FLOAT32 and _are_plain(half, dtype=half.dtype)):
        half = None
    if half is not None and gradient.dtype not in (param.dtype, half.dtype):
        half = None  # left to whoever publishes the weights
    narrow = gradient if half is None else half
    rates, states = state
    tensors = (rate, *rates, gradient, *states, param)
    getattr(load(), name)(
        data_type(param), data_type(gradient), data_type(narrow), numel(param), update.factor, *constants,
        *pointers(*tensors, half),
    )  # fmt: skip
    if half is not None:
        paddle_names.bump_version(half)
        update.written.add(id(half))


def _fits(param, gradient, rate, master):
    """Return whether weights and gradient lie in one piece, the gradient in the format of the weights or in half, and
    no other weights are masters."""
    if master is not None or not _are_plain(rate) or numel(rate) != 1 or gradient.dtype not in DATA_TYPES:
        return False
    if not (param.dtype is FLOAT32 or param.dtype is gradient.dtype and param.dtype in HALF_NAMES):
        return False
    return _are_plain(param, dtype=param.dtype) and _are_plain(gradient, dtype=gradient.dtype)


_ADAM = ("param", "grad", "rate", "moment1", "moment2", "moment2_max", "beta1_pow", "beta2_pow", "master", "skip",
         "beta1", "beta2", "epsilon")  # fmt: skip
_OPTIONS = ("lazy_mode", "rows", "multi_precision", "use_global_beta_pow", "amsgrad")


def _adam(update, values, ratio=1, decay=0.0):
    param, gradient, rate, average, square, largest, power1, power2, master, skip, *constants = values[: len(_ADAM)]
    *_, is_global, amsgrad = values
    if largest is not None or skip is not None or is_global or amsgrad or ratio != 1:
        return None
    if not _fits(param, gradient, rate, master) or not _are_plain(average, square, power1, power2):
        return None
    _run("adam", update, param, gradient, rate, ((power1, power2), (average, square)), *constants, decay)
    return param, average, square, None, power1, power2, None


@_served((*_ADAM, "lr_ratio", "coeff", "with_decay", *_OPTIONS))
def adamw(update, *values):
    """Kernel of ``adamw_``, bit for bit that of Paddle."""
    ratio, decay, decays = values[len(_ADAM) : -len(_OPTIONS)]
    return _adam(update, values, ratio, decay if decays else 0.0)


@_served((*_ADAM, *_OPTIONS))
def adam(update, *values):
    """Kernel of ``adam_``, bit for bit that of Paddle."""
    return _adam(update, values)


@_served(("param", "grad", "velocity", "rate", "master", "mu", "use_nesterov", "regularization_method",
          "regularization_coeff", "multi_precision", "rescale_grad"))  # fmt: skip
def momentum(update, param, gradient, velocity, rate, master, mu, nesterov, method, decay, has_master, rescale):
    """Kernel of ``momentum_``, bit for bit that of Paddle."""
    if method not in ("", "l2_decay") or rescale != 1 or not _fits(param, gradient, rate, master):
        return None
    if not _are_plain(velocity, dtype=param.dtype):
        return None
    _run("momentum", update, param, gradient, rate, ((), (velocity,)), mu, decay if method else 0.0, nesterov)
    return param, velocity, None


@_served(("param", "rate", "grad", "master", "multi_precision"), gradient=2)
def sgd(update, param, rate, gradient, master, has_master):
    """Kernel of ``sgd_``, bit for bit that of Paddle."""
    if not _fits(param, gradient, rate, master):
        return None
    _run("sgd", update, param, gradient, rate, ((), ()))
    return param, None


def lamb_direction(original, args, kwargs):
    """Kernel of ``lamb_direction(weights, grad, average, square, power1, power2, betas, epsilon, corrects,
    weight_decay, adapts)``."""
    names = ("weights", "grad", "average", "square", "power1", "power2", "betas", "epsilon", "corrects", "weight_decay",
             "adapts")  # fmt: skip
    values = bound(args, kwargs, names, ())
    if not _are_plain(*values[:4]) or not _are_plain(*values[4:6], dtype=FLOAT64):
        return NotImplemented
    *tensors, betas, epsilon, corrects, decay, adapts = values
    direction, squares = new_tensor(FLOAT32, tensors[0].shape), new_tensor(FLOAT32, [2]) if adapts else None
    places = pointers(*tensors, direction, squares)
    load().lamb_direction(numel(direction), *betas, epsilon, decay, corrects, *places)
    return direction, squares


def square_sums(original, args, kwargs):
    """Kernel of ``square_sums(tensors)`` for each format."""
    (tensors,) = args
    described: list[int] = []
    for x in tensors:  # hundreds a step
        shape = x.shape
        if not is_known(x.dtype) or not x.is_dense() or not x.is_contiguous() or 0 in shape:
            return NotImplemented
        described += (data_type(x), prod(shape), x.data_ptr())
    out = new_tensor(FLOAT32, [len(tensors)])
    load().square_sums(len(tensors), numbers(*described), out.data_ptr())
    return out


def lamb_descend(original, args, kwargs):
    """Kernel of ``lamb_descend(weights, rate, direction, squares, trust_clip)``."""
    values = bound(args, kwargs, ("weights", "rate", "direction", "squares", "trust_clip"), ())
    if not _are_plain(*values[:3]) or numel(values[1]) != 1:
        return NotImplemented
    weights, rate, direction, squares, clip = values
    places = pointers(rate, squares, direction, weights)
    load().lamb_descend(numel(weights), inf if clip is None else clip, *places)
    paddle_names.bump_version(weights)
    return weights


def _left(small, gradient=1):
    """Return the rule of an operator that is Paddle's own on float32 weights of up to so many elements, where there is
    nothing else to do; its gradient is argument number `gradient`."""

    def rule(original, args, kwargs):
        update, weights = active.update or NONE, args[0]
        is_small = weights.dtype is args[gradient].dtype is FLOAT32 and numel(weights) <= small
        if is_small and update.factor == 1 and update.half_of(weights) is None:
            return original(*args, **kwargs)
        return NotImplemented

    return rule


def left():
    """Return the rules of what is left to Paddle. Without AVX-512 its Adam rounds where the kernel does not: how large
    a tensor is, or by which power of two its gradient is scaled, must not decide about bits."""
    if load() is None:
        return {}
    # In one thread Paddle's Momentum is as fast as the kernel, but for the time that the call takes.
    rules = {"sgd_": _left(1 << 12, gradient=2), "momentum_": _left(1 << 16)}
    return rules | dict.fromkeys(("adamw_", "adam_"), _left(1 << 12)) if load().instruction_set == "avx512" else rules


KERNELS = {
    "adamw_": adamw,
    "adam_": adam,
    "momentum_": momentum,
    "sgd_": sgd,
    "lamb_direction": lamb_direction,
    "lamb_descend": lamb_descend,
    "square_sums": square_sums,
}
