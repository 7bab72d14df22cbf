"""Weights that stay while batches pass: rounded, and in an evaluation rearranged, for the first of them only."""

import contextlib
from collections.abc import Iterator

import paddle

from .scope import Entry, constant


class Frozen:
    """What was made of the weights of a model, by where these begin in memory; everything here keeps its memory.

    What was made is the caller's to write in place, as the result of any cast; it is made anew then.

    Attributes:
        keeps_orders: whether weights in the memory order of a product are kept beside the rounded ones.
    """

    def __init__(self, weights, keeps_orders):
        self.keeps_orders = keeps_orders
        # Not the weights themselves: where one moves, what takes its place in memory must not be taken for it.
        self._known = {weight.data_ptr(): weight.detach() for weight in weights}
        self._made = {}
        self.passes, self.pieces = {}, {}  # see replay.py and pieces.py

    def knows(self, pointer):
        """Return whether a weight, or what was made of one, begins there."""
        return pointer in self._known

    def tensors(self):
        """Return the weights and what was made of them."""
        return self._known.values()

    def made(self, pointer, key, make):
        """Return `make()`, a tensor, or what it returned before for the same weight and key, which names all else."""
        if not self.knows(pointer):
            return make()
        weight = self._known[pointer]
        found, versions = self._made.get((pointer, key), (weight, None))
        if versions != (weight.inplace_version, found.inplace_version):
            found = constant(make) if self.keeps_orders else make()
            self._made[pointer, key] = found, (weight.inplace_version, found.inplace_version)
            self._known[found.data_ptr()] = found  # what is made of a weight is one
        return found


@contextlib.contextmanager
def frozen(model: paddle.nn.Layer) -> Iterator[None]:
    """Promise that no weight or statistic of the model changes until this ends; under `paddle.no_grad()` it saves time.

    It costs the memory of the weights once more in the format of the products.
    """
    with _kept(Frozen(model.parameters(), keeps_orders=True)):
        yield


@contextlib.contextmanager
def rounded_once(model: paddle.nn.Layer) -> Iterator[None]:
    """Promise that no weight that is trained changes until this ends, such as between the micro-batches of a step.

    Each pass has casts, and so gradients, of its own, of one rounded copy. The copies are those that a backward pass
    keeps anyway; they stay until the end.
    """
    with _kept(Frozen([weight for weight in model.parameters() if not weight.stop_gradient], keeps_orders=False)):
        yield


@contextlib.contextmanager
def _kept(weights):
    entry = Entry("frozen", weights)
    try:
        entry.enter()
        yield
    finally:
        entry.leave()
