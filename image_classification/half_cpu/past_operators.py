"""What Python does with tensors past the operators: nobody could do it again for another pass of a model."""

import contextlib
import functools

from . import paddle_names
from .references import References
from .scope import active


class Watcher:
    """Notes why a pass cannot be played again.

    Attributes:
        reason: the first reason, or None.
    """

    reason = None

    def refuse(self, reason):
        """Note a reason."""
        self.reason = self.reason or reason

    @contextlib.contextmanager
    def watching(self):
        """Note what Python does past the operators in this thread until this ends."""
        outer = active.watcher
        try:
            _references().replace(self)
            active.watcher = self
            yield
        finally:
            active.watcher = outer
            _references().restore(self)


def _watched(original):
    """Return the wrapper of a method by which Python reads or writes a tensor itself."""

    @functools.wraps(original)
    def method(*args, **kwargs):
        if active.watcher is not None:
            active.watcher.refuse("Python reads or writes a tensor, on which its path may depend")
        return original(*args, **kwargs)

    return method


def _making(original):
    """Return the wrapper of a method that makes a tensor. Nobody knows where: it may be where another one was, which is
    free since, and would be taken for that."""

    @functools.wraps(original)
    def method(tensor, *args, **kwargs):
        if active.recorder is not None and not (original.__name__ == "contiguous" and tensor.is_contiguous()):
            active.recorder.refuse("a tensor is made past the operators")
        return original(tensor, *args, **kwargs)

    return method


@functools.cache
def _references():
    """Return the references to the methods that are watched."""
    names = dict.fromkeys(paddle_names.PAST_OPERATORS, _watched) | dict.fromkeys(paddle_names.MAKERS, _making)
    return References([], [], {name: wrapped(getattr(paddle_names.Tensor, name)) for name, wrapped in names.items()})
