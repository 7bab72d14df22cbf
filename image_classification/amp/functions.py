"""Whole functions in half precision, in float32 or in the widest dtype of their inputs, as a user or Apex's list says.

    casts = amp.FunctionCasts()

    @casts.half_function
    def attention_scores(q, k): ...

    casts.register_float_function(my_module, "distance")
    precision = amp.build_precision("O1", functions=casts)

A decorated function casts its tensor arguments while a precision that knows it runs a forward context, and is the plain
function otherwise. A registered one is exchanged in its module on entering the context and put back on leaving it.
"""

import functools
import threading
from contextlib import contextmanager

from .policy import widest
from .structures import cast_floating, floating_tensors

HALF, FLOAT, PROMOTE = "half", "float", "promote"
_LOCK = threading.Lock()


class FunctionCasts:
    """Registered functions, and whether they cast now: per object and per thread, nothing is global."""

    def __init__(self):
        self._now = threading.local()
        self._registered = []  # (module, name, kind)
        self._installed = []  # (module, name, wrapper)
        self._users = 0

    def half_function(self, function):
        """Return the function with its floating tensor arguments cast to the half format of the active precision."""
        return self._wrapper(function, HALF)

    def float_function(self, function):
        """Return the function with its floating tensor arguments cast to float32."""
        return self._wrapper(function, FLOAT)

    def promote_function(self, function):
        """Return the function with its floating tensor arguments cast to the widest dtype among them."""
        return self._wrapper(function, PROMOTE)

    def register_half_function(self, module, name):
        """Exchange `module.name` for its `half_function` form inside each forward context."""
        self._register(module, name, HALF)

    def register_float_function(self, module, name):
        """Exchange `module.name` for its `float_function` form inside each forward context."""
        self._register(module, name, FLOAT)

    def register_promote_function(self, module, name):
        """Exchange `module.name` for its `promote_function` form inside each forward context."""
        self._register(module, name, PROMOTE)

    @contextmanager
    def active(self, dtype):
        """Cast to `dtype` where half precision is asked for; None switches the casts off. Re-entrant."""
        stack = self._stack()
        stack.append(dtype)
        self._install()
        try:
            yield
        finally:
            self._uninstall()
            stack.pop()

    def _register(self, module, name, kind):
        if not hasattr(module, name):
            raise ValueError(f"module {getattr(module, '__name__', module)!r} has no function {name!r}")
        with _LOCK:
            if self._users:
                raise RuntimeError("functions are registered before the forward context is entered, not inside it")
            self._registered.append((module, name, kind))

    def _install(self):
        with _LOCK:
            self._users += 1
            if self._users == 1:
                for module, name, kind in self._registered:
                    wrapper = self._wrapper(getattr(module, name), kind)
                    self._installed.append((module, name, wrapper))
                    setattr(module, name, wrapper)

    def _uninstall(self):
        with _LOCK:
            self._users -= 1
            if self._users == 0:
                for installed in self._installed:
                    _take_out(*installed)
                self._installed.clear()

    def _stack(self):
        if not hasattr(self._now, "stack"):
            self._now.stack = []
        return self._now.stack

    def _wrapper(self, function, kind):
        @functools.wraps(function)
        def casting(*args, **kwargs):
            stack = self._stack()
            if stack and stack[-1] is not None:
                dtype = self._dtype(kind, stack[-1], (args, kwargs))
                if dtype is not None:
                    args, kwargs = cast_floating(args, dtype), cast_floating(kwargs, dtype)
            return casting.__wrapped__(*args, **kwargs)

        return casting

    @staticmethod
    def _dtype(kind, half, arguments):
        if kind == HALF:
            return half
        if kind == FLOAT:
            return "float32"
        return widest(floating_tensors(arguments))


def _take_out(module, name, wrapper):
    """Let what a wrapper stands around be called without it: another thread's may stand around the wrapper by now."""
    outer, inner = None, getattr(module, name)
    while inner is not wrapper and inner is not None:
        outer, inner = inner, getattr(inner, "__wrapped__", None)
    if outer is None:
        setattr(module, name, wrapper.__wrapped__)
    elif inner is wrapper:
        outer.__wrapped__ = wrapper.__wrapped__
