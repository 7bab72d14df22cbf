"""The table of fast kernels, consulted before the reference path.

A backend is a group of kernels that run on this machine. A kernel is called as `kernel(original, args, kwargs)`, where
`original` is Paddle's own operator and the arguments are those of the call after the policy's casts; at least one
tensor or dtype argument is half, or the backend serves the operator in float32 too. It returns the operator's result,
or NotImplemented to pass the call on to the reference. Nothing is patched and no policy is consulted while it runs.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REFERENCE = "reference"
PADDLE = "paddle"  # what computes float32 where no backend does


@dataclass(frozen=True)
class Backend:
    """Kernels by operator name, and what computes each half dtype that they serve, in the words that logs show.

    `float32_kernels` names the operators that it is asked for on float32 tensors too, because it is faster than Paddle.
    Without half dtypes it is asked for nothing else. `compact(args, tensors)` returns the positional
    arguments of a call that no kernel serves in the memory order that Paddle's own operators read fast.
    `fork(tensor, note_alone)` returns two views of a tensor whose gradients a kernel sums, or the tensor twice; None
    for no such kernel; a backward pass that finds a gradient of one of them only calls `note_alone()`. `mixed`
    names the operators whose kernels take half and float32 tensors together, computed and returned in float32; the
    kernels `rounding` take half images and float32 weights that they round themselves, the kernels `widening` a half
    tensor of which they return what the operator makes of its float32 copy.
    `left[operator](original, args, kwargs)` returns the result of Paddle's own operator where that is the faster one,
    otherwise NotImplemented; it is asked first.
    """

    name: str
    descriptions: Mapping[str, str]
    kernels: Mapping[str, Callable] = field(repr=False)
    float32_kernels: frozenset = frozenset()
    compact: Callable = field(default=lambda args, tensors: args, repr=False)
    fork: Callable | None = field(default=None, repr=False)
    mixed: frozenset = frozenset()
    rounding: Mapping[str, Callable] = field(default_factory=dict, repr=False)
    widening: Mapping[str, Callable] = field(default_factory=dict, repr=False)
    left: Mapping[str, Callable] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def float32_table(self) -> Mapping[str, Callable]:
        """The kernels of `float32_kernels`, by operator name."""
        return {name: self.kernels[name] for name in self.float32_kernels}


_REFERENCE = Backend(REFERENCE, dict.fromkeys(("float16", "bfloat16"), REFERENCE), {})
_BACKENDS: dict[str, Callable[[], Backend | None]] = {REFERENCE: lambda: _REFERENCE}


def register(name: str, make: Callable[[], Backend | None]) -> None:
    """Make `dispatch(backend=name)` and "auto" use the backend that `make()` returns, None where it cannot run.

    Called once, when the backend is imported; `make` is called when the backend is first asked for.
    """
    _BACKENDS[name] = functools.cache(make)


def find(name: str) -> Backend:
    """Return the backend called `name`; "auto" is the last one registered that runs here, the reference at least.

    Raises:
        ValueError: no backend of that name runs on this machine.
    """
    if name == "auto":
        return next(found for make in reversed(_BACKENDS.values()) if (found := make()) is not None)
    backend = _BACKENDS[name]() if name in _BACKENDS else None
    if backend is None:
        available = ", ".join(known for known, make in _BACKENDS.items() if make() is not None)
        raise ValueError(f"half_cpu backend {name!r} is not available here; available: auto, {available}")
    return backend


def describe(name: str, dtype: str) -> str:
    """Return the description of what computes `dtype` under backend `name`, such as "reference"."""
    backend = find(name)
    if dtype == "float32":
        return backend.name if backend.float32_kernels else PADDLE
    return backend.descriptions.get(dtype, REFERENCE)
