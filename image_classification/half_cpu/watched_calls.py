"""What is seen of a model while its layers still run: whether a pass of theirs can be played again later."""

import contextlib
import functools
import weakref

from . import paddle_names
from .attributes import Attributes
from .past_operators import Watcher
from .recorded_calls import Refused
from .recording import flat

_KEPT = 8  # calls


@contextlib.contextmanager
def changes_nothing(tensors, layers, attributes, is_first):
    """Raise `Refused` behind a call after which further ones may do something else: tensors were written in place,
    Python read or wrote one, but in the first call of a shape, or layers have other attributes than before, such as a
    counter, or wrote one in place, where these are known: the first call of all makes what layers make once."""
    tensors = [*tensors, *(attributes.unknown(layers) if attributes else ())]
    before, watcher = [*map(paddle_names.inplace_version, tensors)], Watcher()
    with watcher.watching():
        yield
    if before != [*map(paddle_names.inplace_version, tensors)]:
        raise Refused("it writes its inputs, weights or attributes in place")
    if watcher.reason and not is_first:
        raise Refused(watcher.reason)
    if attributes is not None and attributes.marks != Attributes(layers).marks:
        raise Refused("it changes its attributes")


class Calls:
    """The latest calls of a model's layers, and how many of their backward passes came."""

    def __init__(self):
        self._graphs = []

    def watch(self, result):
        """Note a call that returned a result; hooks tell when a gradient comes back to it."""
        graph = _Graph()
        with contextlib.suppress(Refused):  # of what is no tensor, for which no pass is recorded
            for tensor in flat(result):
                if not tensor.stop_gradient and not tensor.is_leaf:
                    paddle_names.register_hook(tensor, functools.partial(_note, graph))
        self._graphs = [*self._graphs[1 - _KEPT :], weakref.ref(graph)]

    def are_known(self):
        """Return whether there were any."""
        return bool(self._graphs)

    def waiting(self):
        """Return how many calls wait for their backward pass."""
        return sum(not (graph() is None or graph().is_done) for graph in self._graphs)


class _Graph:
    """Lives as long as a backward pass may come."""

    is_done = False


def _note(graph, gradient):
    graph.is_done = True
