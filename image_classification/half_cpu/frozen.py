"""Weights that stay as they are while many batches pass: rounded and rearranged for the first of them only."""

import contextlib
from collections.abc import Iterator

import paddle

from .scope import active


class Frozen:
    """What was made of the weights of a model, by where these begin in memory; everything here keeps its memory."""

    def __init__(self, weights):
        self._known = {weight.data_ptr(): weight for weight in weights}
        self._made = {}

    def made(self, pointer, key, make):
        """Return `make()`, a tensor, or what it returned before for the same weight and key, which names all else."""
        if pointer not in self._known:
            return make()
        found = self._made.get((pointer, key))
        if found is None:
            found = self._made[pointer, key] = make()
            self._known[found.data_ptr()] = found  # what is made of a weight is one
        return found


@contextlib.contextmanager
def frozen(model: paddle.nn.Layer) -> Iterator[None]:
    """Promise that no weight or statistic of the model changes until this ends; under `paddle.no_grad()` it saves time.

    It costs the memory of the weights once more in the format of the products.
    """
    outer, active.frozen = active.frozen, Frozen(model.parameters())
    try:
        yield
    finally:
        active.frozen = outer
