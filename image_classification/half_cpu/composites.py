"""Python functions that a kernel may serve as a whole, where one operator at a time is too late.

    @half_cpu.composite("attention", casts_as="matmul")
    def attention(qkv, num_heads, scale, dropout=None, bias=None): ...

Outside of a dispatch, and for what the kernel declines, the function itself runs.
"""

import functools
import types

import paddle
from paddle.nn import functional as F

from .arguments import DTYPES, HALF_NAMES, replace_tensors, scan
from .branches import branched
from .scope import active

# The operators of the activations that a composite may be given.
ACTIVATIONS: dict[object, str] = {
    F.relu: "relu", F.relu6: "relu6", F.hardswish: "hardswish", F.silu: "silu", F.gelu: "gelu"
}  # fmt: skip


def composite(kernel, *, casts_as=None, then=(), result_as=None, inference_only=False):
    """Return a decorator that offers each call of a function to a kernel while a dispatch is active.

    Args:
        kernel: the name of a kernel of the backends, whose arguments are then the function's ("attention",
            "linear_gelu", "rearrange"), or a function of one's own, `kernel(original, args, kwargs)`: it
            returns the result or NotImplemented, gets float32 tensors too, and the backend "reference" leaves it out.
        casts_as: the operator whose casts a policy wants for the tensors of the call, the first operator that the
            function calls, or several in one word each that it must treat alike; None for no casts.
        then: the operators that follow. Where there are any, the first of them reads the tensors that the call begins
            with, and others are left as they are. The function itself runs where the policy wants casts for what
            follows, the activations among the arguments too.
        result_as: the operator that alone reads the result. A kernel gets the half dtype to which a policy casts that
            operator's inputs, `dtype`, and returns the result in it; the function runs where the policy casts to none.
        inference_only: with gradients the operators of the function are served one by one.

    Static programs (`paddle.jit.to_static`) get the function itself.
    """
    # The options are keyword-only for Paddle's conversion to static programs as well: it tries a decorator with the
    # function as a further positional argument first, and the call as it is written when that raises.

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            scope = active.scope
            if scope is None or inference_only and paddle.is_grad_enabled():
                return function(*args, **kwargs)
            result = _served(scope, kernel, casts_as, then, result_as, function, args, kwargs)
            return function(*args, **kwargs) if result is NotImplemented else result

        return wrapper

    return decorate


def _served(scope, kernel, casts_as, then, result_as, function, args, kwargs):
    """Return the kernel's result, or NotImplemented where there is no kernel, or one that declines."""
    if scope.composite_kernel(kernel, True) is None and scope.composite_kernel(kernel, False) is None:
        return NotImplemented
    tensors, half = scan(args, kwargs)
    if not tensors:
        return NotImplemented
    if result_as is not None:
        wanted = None if scope.policy_cast is None else scope.policy_cast(result_as, tensors)
        if not isinstance(wanted, str) or wanted not in scope.half_dtypes:
            return NotImplemented
        kwargs = {**kwargs, "dtype": DTYPES[wanted]}
    args, kwargs = branched(scope, kernel, args, kwargs, tensors)
    found = None
    if casts_as is not None and scope.policy_cast is not None:
        wanted, *others = (scope.policy_cast(name, tensors) for name in casts_as.split())
        if any(other != wanted for other in others):
            return NotImplemented
        if wanted in scope.half_dtypes:
            found = scope.kernel_of_both(kernel, wanted, tensors) if paddle.is_grad_enabled() else None
            if found is not None:  # which rounds the second tensor, as a cast would
                del tensors[1]
            else:
                change = _replace_first_tensors if then else replace_tensors
                args, kwargs, tensors, half = scope.cast_inputs(change, args, kwargs, wanted)
        elif wanted is not None and (half or wanted != "float32") and not scope.mixes(kernel, wanted, tensors):
            return NotImplemented
        if then and not _stays(scope.policy_cast, (*then, *_activations(args)), tensors):
            return NotImplemented
    found = found or scope.composite_kernel(kernel, half)
    if found is None:
        return NotImplemented
    active.scope = None
    try:
        return found(function, args, kwargs)
    finally:
        active.scope = scope


def _replace_first_tensors(args, kwargs, replace):
    """Return (args, kwargs) with `replace(tensor)` in place of the tensors that the arguments begin with."""
    count = next((index for index, value in enumerate(args) if not isinstance(value, paddle.Tensor)), len(args))
    return [*replace_tensors(args[:count], {}, replace)[0], *args[count:]], kwargs


def _activations(args):
    """Return the operators of the activations among the arguments, "" for another function."""
    return [ACTIVATIONS.get(value, "") for value in args if type(value) is types.FunctionType]


def _stays(policy_cast, operators, tensors):
    """Return whether a policy leaves the tensors as they are for all of the operators."""
    own = (None, HALF_NAMES.get(tensors[0].dtype, "float32"))
    for name in operators:  # noqa: SIM110, a generator takes as long as all else
        if not name or policy_cast(name, tensors) not in own:
            return False
    return True
