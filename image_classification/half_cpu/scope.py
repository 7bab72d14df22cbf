"""What one `dispatch` asks for, and which one is active in this thread."""

import contextlib
import functools
import threading
from typing import Any

import paddle

from . import kernels, paddle_names
from .arguments import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, scan


class Scope:
    """Policy and kernels of one dispatch."""

    def __init__(self, policy, backend):
        if not (policy is None or hasattr(policy, "cast")):
            raise ValueError(f"half_cpu.dispatch: a policy has a method cast(op_name, tensors), {policy!r} has none")
        self.backend = backend
        self.policy_cast = None if policy is None else policy.cast
        self.kernels = backend.kernels if backend.descriptions else {}
        self.float32_kernels = backend.float32_table
        self.fork = backend.fork
        self.mixed = backend.mixed
        self.rounding = backend.rounding
        self.widening = backend.widening
        self.left = backend.left
        self.half_dtypes = backend.descriptions.keys()
        self.compact = backend.compact

    def cast(self, tensor, dtype, out=None):
        """Return `tensor` in `dtype`, rounded once and recorded by autograd; as a new tensor, or written to `out`."""
        if out is None:
            return self._cast(tensor, dtype) if paddle.is_grad_enabled() else cast_once(tensor, dtype, self._cast)
        kernel = self.kernels.get("write")
        if kernel is None or kernel(None, (out, tensor), {}) is NotImplemented:
            noted(paddle_names.assign_out_, self._cast(tensor, dtype), out, writes=True)
        return out

    def _cast(self, tensor, dtype):
        kernel = self.kernels.get("cast")
        if kernel is not None:
            result = kernel(paddle_names.cast, (tensor, dtype), {})
            if result is not NotImplemented:
                return result
        return cast_by_paddle(tensor, dtype)

    def cast_inputs(self, change, args, kwargs, wanted):
        """Return (args, kwargs, tensors, half) with the floating inputs that `change` visits in the dtype named."""
        wanted = DTYPES[wanted]

        def replace(tensor):
            dtype = tensor.dtype
            if dtype is wanted or not (dtype is FLOAT32 or dtype is FLOAT16 or dtype is BFLOAT16):
                return tensor
            return self.cast(tensor, wanted)

        args, kwargs = change(args, kwargs, replace)
        return args, kwargs, *scan(args, kwargs)

    def kernel_of_both(self, kernel, wanted, tensors):
        """Return the kernel that takes half and float32 tensors as they are, to compute in one format, or None."""
        if wanted == "float32":
            if kernel in self.widening and tensors[0].dtype is not FLOAT32:
                return self.widening[kernel]
            return self.kernels[kernel] if self.mixes(kernel, wanted, tensors) else None
        is_half = tensors[0].dtype is DTYPES[wanted]
        return self.rounding[kernel] if is_half and self._rounds(kernel, tensors) else None

    def casts_one(self, kernel, wanted, tensors):
        """Return whether the first tensor alone is to be cast, because the kernel rounds the second one itself."""
        return tensors[0].dtype is not DTYPES[wanted] and self._rounds(kernel, tensors)

    def _rounds(self, kernel, tensors):
        return kernel in self.rounding and len(tensors) > 1 and tensors[1].dtype is FLOAT32

    def mixes(self, kernel, wanted, tensors):
        """Return whether a kernel computes in the wanted float32 what is half of the tensors, without casts."""
        return wanted == "float32" and kernel in self.mixed and any(tensor.dtype is FLOAT32 for tensor in tensors)

    def composite_kernel(self, kernel, half):
        """Return the kernel of a composite for half or float32 tensors, given by name or as it is, or None."""
        if callable(kernel):
            return None if self.backend.name == kernels.REFERENCE else kernel
        return (self.kernels if half else self.float32_kernels).get(kernel)


class _Active(threading.local):
    def __init__(self):
        self.scope: Scope | None = None
        self.frozen: Any = None  # see frozen.py
        self.update: Any = None  # see updates.py
        self.recorder: Any = None  # see replay.py
        self.watcher: Any = None  # see past_operators.py
        self.entered: list[Entry] = []


class Entry:
    """A context that may be entered: what it makes active, and what becomes active again behind it.

    Contexts inside of generators end in any order; one that ends before a later one gives that its outer value. An
    interrupt while a context is entered or left, which may come behind any call, leaves it.

    Args:
        kind: "scope", "frozen" or "update".
        references: the ones to replace meanwhile, see references.py.
    """

    def __init__(self, kind: str, value: Any, references: Any = None):
        self.thread = vars(active)  # that of this thread, which a generator may leave to another one
        self._kind, self._value, self._outer, self._references = kind, value, self.thread[kind], references

    @property
    def is_entered(self) -> bool:
        return self in self.thread["entered"]

    def enter(self) -> None:
        """Make the value active in this thread."""
        try:
            if self._references is not None:
                self._references.replace(self)
            self.thread["entered"].append(self)
            self.thread[self._kind] = self._value
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """End the context, in the thread that entered it."""
        try:
            self._leave()
        except BaseException:
            self._leave()  # twice does no harm
            raise

    def _leave(self):
        entered = self.thread["entered"]
        if self in entered:
            later = [entry for entry in entered[entered.index(self) + 1 :] if entry._kind == self._kind]
            if later:
                later[0]._outer = self._outer
            else:
                self.thread[self._kind] = self._outer
            entered.remove(self)
        if self._references is not None:
            self._references.restore(self)


# `active.scope` is None outside of every dispatch, and while a kernel or a rule runs: what it calls goes to Paddle.
active = _Active()


@contextlib.contextmanager
def undispatched():
    """Leave operators to Paddle, as in a backward pass."""
    scope, active.scope = active.scope, None
    try:
        yield
    finally:
        active.scope = scope


def noted(function, *args, writes=False):
    """Return `function(*args)`, which is called again whenever what is recorded here is played: it makes zeros to be
    written to, or random numbers, or writes one of the arguments."""
    return (function if active.recorder is None else active.recorder.noted(function, writes))(*args)


def itself(original):
    """Return the wrapper of a method that gives a tensor as another object, of which nobody knew who reads it."""

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        return original(self, *args, **kwargs) if active.scope is None else self

    return method


def cast_by_paddle(tensor, dtype):
    """Return `tensor` in `dtype` by Paddle's operator, recorded by autograd.

    Paddle 3.3.1 casts numbers of 2^-89 to 2^-77 to float16 ones of up to 2^-14 instead of 0; they become 2^-26 before.
    """
    if dtype is not FLOAT16 or tensor.dtype not in (FLOAT32, FLOAT64):
        return noted(paddle_names.cast, tensor, dtype)
    with undispatched():
        with paddle.no_grad():
            lost = paddle.logical_and(tensor.abs() < 2.0**-77, tensor.astype("bool"))
            addend = paddle.where(lost, tensor.sign() * 2.0**-26, paddle.full_like(tensor, -0.0))  # x + -0 is x
        return noted(paddle_names.cast, tensor + addend, dtype)


def constant(make, *args):
    """Return `make(*args)`, a tensor that is made of no other, or of weights that stay, and stays as it is."""
    recorder, active.recorder = active.recorder, None
    try:
        tensor = make(*args)
    finally:
        active.recorder = recorder
    if recorder is not None:
        recorder.constant(tensor)
    return tensor


def made_once(pointer, key, make):
    """Return `make()`, the numbers that begin at a pointer in another order, or, for a frozen weight, the tensor of the
    last call."""
    return active.frozen.made(pointer, key, make) if is_kept(pointer) else make()


def is_kept(pointer):
    """Return whether what begins at a pointer is a frozen weight, of which `made_once` makes a tensor once."""
    kept = active.frozen
    return kept is not None and kept.keeps_orders and not paddle.is_grad_enabled() and kept.knows(pointer)


def cast_once(tensor, dtype, cast):
    """Return `cast(tensor, dtype)`, or, for a frozen weight, the one of the last call; not under gradients.

    Views of a weight may begin where it begins, so shape and strides belong to the key.
    """
    if active.frozen is None:
        return cast(tensor, dtype)
    key = (dtype, tuple(tensor.shape), tuple(tensor.strides))
    return active.frozen.made(tensor.data_ptr(), key, lambda: cast(tensor, dtype))
