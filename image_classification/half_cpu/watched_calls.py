"""What is seen of a model while its layers still run: whether a pass of theirs can be played again later."""

import contextlib
import functools
import weakref

from . import paddle_names
from .recorded_calls import Refused
from .recording import flat

_KEPT = 8  # calls


class Calls:
    """The latest calls of a model's layers, and to which of their results gradients came back."""

    def __init__(self):
        self._calls = []

    @contextlib.contextmanager
    def writes_nothing(self, tensors):
        """Raise `Refused` behind a call that wrote tensors in place: each further pass would write them again."""
        before = [*map(paddle_names.inplace_version, tensors)]
        yield
        if before != [*map(paddle_names.inplace_version, tensors)]:
            raise Refused("it writes its inputs or weights in place")

    def watch(self, result):
        """Note a call that returned a result; hooks tell which of its tensors get a gradient."""
        seen: set[int] = set()
        graph = _Graph()
        learning = [one for one in flat(result) if not one.stop_gradient and not one.is_leaf]
        for number, tensor in enumerate(learning):
            tensor.register_hook(functools.partial(_note, seen, number, graph))
        self._calls = [*self._calls[1 - _KEPT :], (len(learning), seen, weakref.ref(graph))]

    def is_free(self):
        """Return whether no call waits for its backward pass."""
        return all(seen or graph() is None for _, seen, graph in self._calls)

    def check(self):
        """Raise `Refused` where a backward pass did not reach all results: a played one would have zeros for none."""
        if any(0 < len(seen) < number for number, seen, _ in self._calls):
            raise Refused("a result got no gradient")


class _Graph:
    """Lives as long as a backward pass may come."""


def _note(seen, number, graph, gradient):
    seen.add(number)
