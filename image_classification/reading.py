"""The batches of a training as its steps take them, and what happens where one cannot be read.

All processes must learn of that before any of them changes its weights, and none may leave the others waiting in a pass
that they make together. So the first micro-batch of a step is read before the vote at the end of the step before, and
one that is missing further on in a window is replaced by the last one, until the window is taken back.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import paddle

from .parallel.protocol import Parallel, running_statistics
from .runtime import UserError

Batch: TypeAlias = tuple[np.ndarray, np.ndarray]  # images and labels


class ReadAhead:
    """Iterates over batches of which the next one is read already; ``seconds`` is how long that took.

    ``failure`` is why it could not be read, None if it could.
    """

    def __init__(self, batches: Iterator[Batch], count: int):
        self._batches = itertools.islice(batches, count)
        self._ahead: list[Batch] = []
        self.failure: UserError | None = None
        self.read()

    def read(self) -> None:
        """Read the next batch, if there is one left."""
        start = time.perf_counter()
        try:
            self._ahead = list(itertools.islice(self._batches, 1))
        except UserError as error:
            self.failure = error
        self.seconds = time.perf_counter() - start

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self._ahead.pop() if self._ahead else next(self._batches)


class MicroBatches:
    """The next ``window`` batches of an epoch, and how long the training waited for them.

    Where one after the first cannot be read, ``failure`` says why and the last one comes again in its place.
    """

    def __init__(self, batches: Iterator[Batch], window: int, waited: float = 0.0):
        self.batches = batches
        self.window = window
        self.reader_seconds = waited
        self.failure: UserError | None = None

    def __len__(self) -> int:
        return self.window

    def __iter__(self) -> Iterator[Batch]:
        batch = None
        for _ in range(self.window):
            start = time.perf_counter()
            try:
                batch = next(self.batches)
            except UserError as error:
                if batch is None:
                    raise
                self.failure, self.batches = error, itertools.repeat(batch)
            self.reader_seconds += time.perf_counter() - start
            yield batch


def snapshot(model: paddle.nn.Layer, parallel: Parallel) -> Callable[[], None]:
    """Return what takes back all that passes of training leave in a model and its random generators, but gradients."""
    statistics = list(running_statistics(model).values())
    values, rng = [tensor.clone().detach() for tensor in statistics], parallel.rng_state()

    def undo() -> None:
        for tensor, value in zip(statistics, values, strict=True):
            tensor.set_value(value)
        parallel.set_rng_state(rng)

    return undo
