"""The context manager inside which Paddle's operators work on float16 and bfloat16 CPU tensors.

It is the only place that patches Paddle, and nothing is patched outside it. Policies and backends are per thread: an
operator that another thread calls meanwhile goes straight to Paddle.
"""

import functools
import threading
from contextlib import contextmanager

from . import kernels, native, op_names, paddle_names, reference
from .arguments import BFLOAT16, DTYPES, FLOAT16, FLOAT32, KINDS, TENSOR, replace_tensors, scan
from .references import References


class _Scope:
    """What one `dispatch` asks for: policy and kernels."""

    def __init__(self, policy, backend):
        self.policy = policy
        self.kernels = backend.kernels
        self.half_dtypes = backend.dtypes

    def cast(self, tensor, dtype):
        """Return `tensor` in `dtype`, rounded once and recorded by autograd."""
        kernel = self.kernels.get("cast")
        if kernel is not None:
            result = kernel(paddle_names.cast, (tensor, dtype), {})
            if result is not NotImplemented:
                return result
        return paddle_names.cast(tensor, dtype)

    def cast_inputs(self, name, args, kwargs, tensors):
        """Return (args, kwargs) as the policy wants them; the same objects when nothing is to be cast."""
        wanted = self.policy.cast(name, tensors)
        if wanted is None:
            return args, kwargs
        wanted = DTYPES[wanted]

        def replace(tensor):
            dtype = tensor.dtype
            if dtype is wanted or not (dtype is FLOAT32 or dtype is FLOAT16 or dtype is BFLOAT16):
                return tensor
            return self.cast(tensor, wanted)

        return replace_tensors(args, kwargs, replace)


class _Active(threading.local):
    scope = None


_ACTIVE = _Active()

def _serve(scope, name, original, args, kwargs):
    """Return the result of one operator call under `scope`."""
    tensors, half = scan(args, kwargs)
    _ACTIVE.scope = None  # nothing below is dispatched again
    try:
        if scope.policy is not None and tensors and op_names.sees_policy(name):
            new_args, new_kwargs = scope.cast_inputs(name, args, kwargs, tensors)
            if new_args is not args:
                args, kwargs = new_args, new_kwargs
                tensors, half = scan(args, kwargs)
        if not half:
            return original(*args, **kwargs)
        kernel = scope.kernels.get(name)
        if kernel is not None:
            result = kernel(original, args, kwargs)
            if result is not NotImplemented:
                return result
        if name in native.EXACT:
            return original(*args, **kwargs)
        return reference.compute(name, original, args, kwargs, tensors, scope.cast)
    finally:
        _ACTIVE.scope = scope


def _operator(name, original):
    """Return the wrapper that stands for the built-in operator while a dispatch is active."""

    @functools.wraps(original)
    def operator(*args, **kwargs):
        scope = _ACTIVE.scope
        if scope is None:
            return original(*args, **kwargs)
        return _serve(scope, name, original, args, kwargs)

    return operator


def _method(method_name, original):
    """Return the wrapper of an arithmetic method of Tensor."""
    tensor_name, scalar_name = op_names.ARITHMETIC_METHODS[method_name]

    @functools.wraps(original)
    def method(self, other):
        scope = _ACTIVE.scope
        if scope is None:
            return original(self, other)
        name = tensor_name if KINDS[type(other)] == TENSOR else scalar_name
        return _serve(scope, name, original, (self, other), {})

    return method


@functools.cache
def _references():
    """Return the one list of references. Built on first use: a program that stays in float32 never pays for it."""
    operators = paddle_names.public_builtins(paddle_names.OPERATORS)
    wrappers = {name: _operator(name, original) for name, original in operators.items()}
    methods = {name: _method(name, getattr(paddle_names.Tensor, name)) for name in op_names.ARITHMETIC_METHODS}
    return References([(paddle_names.OPERATORS, wrappers)], methods)


@contextmanager
def dispatch(policy=None, backend="auto"):
    """Make operators work on real float16 and bfloat16 CPU tensors until the context ends.

    Re-entrant; an inner context replaces the policy and backend of the outer one. The backward pass needs no context.

    Args:
        policy: object whose `cast(op_name, tensors)` returns "float16", "bfloat16" or "float32", the dtype to which the
            operator's floating inputs are cast first, or None to leave them. `tensors` are all tensors of the call in
            order. None for no policy.
        backend: "auto", "reference" or the name of a registered backend.

    Raises:
        UnsupportedOperator: inside the context, for an operator that cannot compute half tensors.
        ValueError: unknown backend.
    """
    scope = _Scope(policy, kernels.find(backend))
    references = _references()
    outer = _ACTIVE.scope
    references.replace()
    _ACTIVE.scope = scope
    try:
        yield
    finally:
        _ACTIVE.scope = outer
        references.restore()


def backend_name(dtype, backend="auto"):
    """Return what computes `dtype` ("float16", "bfloat16") inside `dispatch(backend=backend)`, such as "reference"."""
    return kernels.describe(backend, dtype)

