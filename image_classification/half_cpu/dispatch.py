"""The context manager inside which Paddle's operators work on float16 and bfloat16 CPU tensors.

Nothing is patched outside it. Policies and backends are per thread: an operator that another thread calls meanwhile
goes straight to Paddle.
"""

import functools
import threading
from typing import Any

import paddle

from . import inplace, kernels, native, op_names, paddle_names, products, reference
from .arguments import FLOATING, KINDS, TENSOR, is_basic, is_whole, replace_first_tensor, replace_tensors, scan
from .branches import branched
from .composites import composite
from .huge_pages import Adviser
from .references import References
from .scope import Entry, Scope, active, itself

_advise = Adviser()
_BUILDING = threading.Lock()  # two first users must not each take the other's wrappers for originals


class _Operator:
    """How one operator is served: its names and the rule for half tensors."""

    __slots__ = ("name", "kernel_name", "policy_name", "inplace", "rule", "norm", "legacy", "reads_strides", "writes")

    def __init__(self, name, legacy=False, spelt_out=True):
        self.name = name
        standard = op_names.LEGACY[name] if legacy else name
        # Kernels know the arguments of operators; a method with a number of another type takes others.
        self.kernel_name = standard if spelt_out else None
        self.policy_name = op_names.policy_name(standard) if op_names.sees_policy(name) else None
        self.legacy = legacy
        self.reads_strides = name in native.EXACT or name in op_names.INDEX_METHODS or op_names.is_inplace(name)
        self.inplace = op_names.is_inplace(name)
        self.writes = self.inplace or name == op_names.SET_ITEM  # the history of what is written is that tensor's
        self.norm = name in op_names.NORMS
        self.rule = _RULES.get(name, inplace.compute_inplace if self.inplace else reference.compute)


# operator -> the function that computes it for half tensors, where it is one of its own
_RULES = {
    op_names.CAST: reference.compute_cast,
    **dict.fromkeys(op_names.NORMS, reference.compute_norm),
    **dict.fromkeys(op_names.BATCH_NORMS, inplace.compute_batch_norm),
    **dict.fromkeys(op_names.FLOAT32_RESULTS, reference.compute_without_rounding),
    op_names.EMBEDDING: reference.compute_embedding,
    op_names.CUSTOM: reference.refuse_custom,
    op_names.PROGRAM: reference.refuse_program,
    op_names.SET_ITEM: inplace.compute_set_item,
    op_names.GET_ITEM: reference.compute_get_item,
}


def _serve(scope, operator, original, args, kwargs):
    """Return the result of one operator call under `scope`."""
    is_recorded = active.recorder is not None
    if is_recorded:
        original = _noted(operator, original)
        if not operator.writes:  # what is left to Paddle reads tensors, too
            args, kwargs = branched(scope, operator.name, args, kwargs, scan(args, kwargs)[0])
    rule, policy_cast = scope.left.get(operator.kernel_name), scope.policy_cast
    if rule is not None and args and (policy_cast is None or operator.policy_name is None):
        result = rule(original, args, kwargs)
        if result is not NotImplemented:
            return result
    tensors, half = scan(args, kwargs)
    if not tensors and not paddle.in_dynamic_mode():  # a program is written down, of values that are no tensors
        return original(*args, **kwargs)
    if not operator.writes and not is_recorded:
        args, kwargs = branched(scope, operator.name, args, kwargs, tensors)
    if tensors and policy_cast is not None and operator.policy_name is not None:
        wanted = policy_cast(operator.policy_name, tensors)
        if wanted is not None:
            if callable(wanted):
                return _serve_product(scope, operator, original, args, kwargs, wanted)
            if scope.casts_one(operator.kernel_name, wanted, tensors):
                args, kwargs, tensors, half = scope.cast_inputs(replace_first_tensor, args, kwargs, wanted)
            kernel = scope.kernel_of_both(operator.kernel_name, wanted, tensors)
            if kernel is not None:
                active.scope = None
                try:
                    result = kernel(original, args, kwargs)
                finally:
                    active.scope = scope
                if result is not NotImplemented:
                    return result
            # Parameters and statistics of a normalisation are used as they are, like on a GPU.
            change = replace_first_tensor if operator.norm else replace_tensors
            args, kwargs, tensors, half = scope.cast_inputs(change, args, kwargs, wanted)
    name = operator.kernel_name
    if not half and rule is not None and args and policy_cast is not None:
        result = rule(original, args, kwargs)
        if result is not NotImplemented:
            return result
    if not half and name not in scope.float32_kernels:
        return original(*(args if operator.reads_strides else scope.compact(args, tensors)), **kwargs)
    if operator.inplace and policy_cast is not None:
        policy_cast(operator.name, tensors)  # nothing is cast, but a policy may refuse
    active.scope = None  # what a kernel or a rule calls is not dispatched again
    try:
        kernel = (scope.kernels if half else scope.float32_kernels).get(operator.kernel_name)
        if kernel is not None:
            result = kernel(original, *(op_names.present_arguments(args) if operator.legacy else (args, kwargs)))
            if result is not NotImplemented:
                return result
        if not operator.reads_strides:
            args = scope.compact(args, tensors)
        if not half or native.is_exact(operator.name, tensors):
            return original(*args, **kwargs)
        return operator.rule(operator.name, original, args, kwargs, tensors, scope.cast)
    finally:
        active.scope = scope


def _noted(operator, original):
    """Return Paddle's operator, whose calls a pass that is recorded consists of."""
    return original if active.recorder is None else active.recorder.noted(original, operator.writes)


def _serve_product(scope, operator, original, args, kwargs, cast):
    """Return a product whose operands the policy rounds itself."""

    def run(args, kwargs):
        return _serve(active.scope, operator, original, args, kwargs)

    return products.compute(
        operator.policy_name, args, kwargs, cast, run, lambda: dispatch(backend=scope.backend.name)
    )


def _operator(name, original, legacy=False):
    """Return the wrapper that stands for a built-in operator while a dispatch is active."""
    operator = _Operator(name, legacy)
    served = reference.SERVED[name](original) if name in reference.SERVED else original

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        scope = active.scope
        if scope is None:
            return _noted(operator, original)(*args, **kwargs)
        if "out" in kwargs:
            return inplace.compute_into(lambda kwargs: _serve(scope, operator, served, args, kwargs), **kwargs)
        return _serve(scope, operator, served, args, kwargs)

    return wrapper


def _arithmetic_method(method_name, original):
    """Return the wrapper of an arithmetic method of Tensor."""
    tensor_name, scalar_name = op_names.ARITHMETIC_METHODS[method_name]
    with_tensor, with_number = _Operator(tensor_name), _Operator(scalar_name)
    with_other = _Operator(scalar_name, spelt_out=False)
    number_arguments = op_names.NUMBER_ARGUMENTS.get(method_name)
    with_number_original = getattr(paddle_names.OPERATORS, scalar_name)

    @functools.wraps(original)
    def method(self, other):
        scope = active.scope
        if scope is None:
            return _noted(with_tensor, original)(self, other)
        kind = type(other)
        if KINDS[kind] == TENSOR:
            return _serve(scope, with_tensor, original, (self, other), {})
        # The same call that Paddle makes inside the method, spelt out so that kernels and policies see it.
        if number_arguments is not None and (kind is float or kind is int) and self.dtype in FLOATING:
            return _serve(scope, with_number, with_number_original, (self, *number_arguments(other)), {})
        return _serve(scope, with_other, original, (self, other), {})

    return method


def _index_method(method_name, original):
    """Return the wrapper of `tensor[index]` or of `tensor[index] = value`."""
    operator = _Operator(method_name)

    @functools.wraps(original)
    def method(self, index, *value):
        scope = active.scope
        is_all = scope is not None and not value and is_whole(index, self.shape)
        if scope is None or is_all:  # all of a tensor is, to autograd, the tensor
            return (original if is_all else _noted(operator, original))(self, index, *value)
        if is_basic(index):
            return _serve(scope, operator, original, (self, index, *value), {})
        plain = _dense(scope, self)
        result = _serve(scope, operator, original, (plain, index, *value), {})
        if value and plain is not self:
            inplace.write(self, plain, scope.cast)
        return result

    return method


def _dense(scope, tensor):
    """Return a tensor or, where it is strided, a dense copy of it, through which gradients go: Paddle 3.3.1 reads and
    writes other places than lists and arrays name in strided ones, which kernels make, or views of them."""
    if not tensor.is_dense() or tensor.is_contiguous():
        return tensor
    (plain,) = scope.compact((tensor,), (tensor,))
    return paddle.assign(tensor) if plain is tensor else plain


def _recomputation(original):
    """Return the wrapper of Paddle's recompute: the backward pass runs the function as the forward pass did."""

    @functools.wraps(original)
    def recompute(function, *args, **kwargs):
        scope = active.scope
        if scope is None:
            return original(function, *args, **kwargs)
        if active.recorder is not None:
            active.recorder.refuse("a part is computed again in the backward pass")

        @functools.wraps(function.forward if isinstance(function, paddle.nn.Layer) else function)
        def inside(*args, **kwargs):
            with dispatch.again(scope):
                return function(*args, **kwargs)

        return original(inside, *args, **kwargs)

    return recompute


@functools.cache
def _references():
    """Return the one list of references. Built on first use: a program on a GPU never pays for it."""
    operators = paddle_names.public_builtins(paddle_names.OPERATORS)
    operators[op_names.CUSTOM] = getattr(paddle_names.OPERATORS, op_names.CUSTOM)
    legacy, attention = paddle_names.LEGACY_OPERATORS, paddle_names.ATTENTION_MODULE
    whole = composite("dot_product_attention", casts_as="matmul")(getattr(attention, paddle_names.ATTENTION))
    again = _recomputation(getattr(paddle_names.RECOMPUTE_MODULE, paddle_names.RECOMPUTE))
    tables = [
        (paddle_names.OPERATORS, {name: _operator(name, original) for name, original in operators.items()}),
        (legacy, {name: _operator(name, getattr(legacy, name), True) for name in op_names.LEGACY}),
    ]
    functions = [
        (attention, {paddle_names.ATTENTION: whole}), (paddle_names.RECOMPUTE_MODULE, {paddle_names.RECOMPUTE: again}),
    ]
    methods = {}
    for make, names in ((_arithmetic_method, op_names.ARITHMETIC_METHODS), (_index_method, op_names.INDEX_METHODS)):
        methods.update({name: make(name, getattr(paddle_names.Tensor, name)) for name in names})
    name = paddle_names.AS_ANOTHER_OBJECT
    methods[name] = itself(getattr(paddle_names.Tensor, name))
    return References(tables, functions, methods)


class dispatch:
    """Make operators work on real float16 and bfloat16 CPU tensors, and faster on float32 ones, until the context ends.

    Re-entrant; an inner context replaces the policy and the backend of the outer one. `loss.backward()` needs no
    context, except where the backward pass runs Python code on half tensors (a PyLayer, a hook); what
    `paddle.distributed.fleet.utils.recompute` runs again has that of the forward pass.

    Args:
        policy: object whose `cast(op_name, tensors)` returns "float16", "bfloat16" or "float32", the dtype to which the
            operator's floating inputs are cast first, or None to leave them, or, for a product, a function
            `cast(tensor, operand)` that rounds each operand (`half_cpu.Operand`). `tensors` are all tensors of the call
            in order. It is asked for every operator that reads tensors, except casts and creation. An in-place operator
            on half tensors is announced with its underscore so that the policy can refuse it; the answer is ignored.
        backend: "auto", "reference" or the name of a registered backend.

    Raises:
        UnsupportedOperator: inside the context, for an operator that cannot compute half tensors.
        ValueError: unknown backend.
    """

    def __init__(self, policy: Any = None, backend: str = "auto"):
        self._scope = Scope(policy, kernels.find(backend))
        self._entered: list[Entry] = []

    @classmethod
    def again(cls, scope):
        """Return another context of the same policy and backend."""
        context = cls(backend=scope.backend.name)
        context._scope = scope
        return context

    def __enter__(self):
        with _BUILDING:
            references = _references()
        _advise()
        entry = Entry("scope", self._scope, references)
        self._entered.append(entry)
        entry.enter()
        return self

    def __exit__(self, *exception):
        entry = None
        try:
            entry = self._innermost()
            entry.leave()
            self._entered.remove(entry)
        except BaseException:  # an interrupt, which may come behind any call
            (entry or self._innermost()).leave()
            raise
        return False

    def _innermost(self):
        # Threads may share a dispatch; a generator that another thread ends is of neither.
        entered = [entry for entry in self._entered if entry.is_entered]
        own = [entry for entry in entered if entry.thread is vars(active)]
        return (own or entered)[-1]


def backend_name(dtype: str, backend: str = "auto") -> str:
    """Return what computes `dtype` inside `dispatch(backend=backend)`, such as "reference" for "float16"."""
    return kernels.describe(backend, dtype)
