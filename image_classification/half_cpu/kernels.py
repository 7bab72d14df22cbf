"""The table of fast kernels, consulted before the reference path.

A backend is a group of kernels that run on this machine. A kernel is called as `kernel(original, args, kwargs)`, where
`original` is Paddle's own operator and the arguments are those of the call after the policy's casts; at least one
tensor or dtype argument is half, or the backend serves the operator in float32 too. It returns the operator's result,
or NotImplemented to pass the call on to the reference. Nothing is patched and no policy is consulted while it runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REFERENCE = "reference"
PADDLE = "paddle"  # what computes float32 where no backend does


@dataclass(frozen=True)
class Backend:
    """Kernels by operator name, the half dtypes ("bfloat16") that they serve, and the name that logs show.

    `float32_kernels` names the operators that it is asked for on float32 tensors too, because it is faster than Paddle.
    Without half dtypes it is asked for nothing else.
    """

    name: str
    description: str
    dtypes: frozenset
    kernels: Mapping[str, Callable] = field(repr=False)
    float32_kernels: frozenset = frozenset()


_BACKENDS = {REFERENCE: Backend(REFERENCE, REFERENCE, frozenset({"float16", "bfloat16"}), {})}


def register(backend):
    """Make `dispatch(backend=backend.name)` and "auto" use these kernels. Called once, when the backend is imported."""
    _BACKENDS[backend.name] = backend


def find(name):
    """Return the backend called `name`; "auto" is the last one registered, else the reference.

    Raises:
        ValueError: no backend of that name runs on this machine.
    """
    if name == "auto":
        return list(_BACKENDS.values())[-1]
    if name not in _BACKENDS:
        raise ValueError(f"half_cpu backend {name!r} is not available here; available: auto, {', '.join(_BACKENDS)}")
    return _BACKENDS[name]


def describe(name, dtype):
    """Return the description of what computes `dtype` under backend `name`, such as "reference"."""
    backend = find(name)
    if dtype == "float32":
        return backend.name if backend.float32_kernels else PADDLE
    return backend.description if dtype in backend.dtypes else REFERENCE
