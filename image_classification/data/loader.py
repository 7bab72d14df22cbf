"""Batches in a fixed order: the same (seed, epoch) gives the same ones with any number of workers, from any start."""

import concurrent.futures
import math

import numpy as np

from ..runtime import UserError, get_logger
from .workers import WorkerPool

_END = object()
CLOSE_SECONDS = 2.0  # an iteration that is given up waits no longer for the batch that is under way
MAX_CHUNK = 16  # samples a task: small enough to share a batch among the workers, large enough to make messages cheap


class EpochLoader:
    """What every kind of loader says of itself and is told; a kind of its own adds ``iterate`` and ``close``.

    ``order(epoch)`` gives this rank's int64 [n, 2] of (image, repeat). Where it is set, ``mix(images, labels, epoch,
    batch)`` replaces both of a finished batch.
    """

    def __init__(self, maker, order, batch_size):
        self.dataset = maker.dataset
        self.batch_size = batch_size
        self.num_images = len(order(0))
        self.epoch = 0
        self.mix = None
        self.maker = maker
        self._order = order

    def __len__(self):
        return math.ceil(self.num_images / self.batch_size)

    def set_epoch(self, epoch):
        """Choose the epoch whose order and augmentation the next iteration uses."""
        self.epoch = epoch

    def hurry(self):
        """Wait no longer than seconds for what hangs: the run is to stop; called in a signal handler."""

    def __iter__(self):
        return self.iterate()


class Loader(EpochLoader):
    """Iterates over (images float32 [B, C, H, W] normalised, labels int64 [B]) of one epoch.

    The last batch may be smaller; an order made for training has none. Only one iteration of a loader can be under way
    at a time.
    """

    def __init__(
        self, maker, order, batch_size, normalize, image_shape, num_workers=0, prefetch=2, timeout_seconds=120.0
    ):
        super().__init__(maker, order, batch_size)
        self.num_workers = num_workers
        self._normalize = normalize
        self._image_shape = tuple(image_shape)
        self._num_slots = prefetch + 1
        self._timeout_seconds = timeout_seconds
        self._pool = None
        self._is_to_stop = False
        self._following = None  # the batch that a thread is making, as a future
        self._skipped = {}

    @property
    def skipped_images(self):
        """The number of different corrupt images left out so far."""
        return len(self._skipped)

    def iterate(self, start_batch=0):
        """Yield the batches of the epoch from ``start_batch`` on; those before it are not read.

        Raises:
            UserError: naming the file of a corrupt image, a label out of range, or a worker that died or hangs.
        """
        order, epoch = self._order(self.epoch), self.epoch
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        numbers = range(start_batch, len(batches))
        if self.num_workers:
            return self._one_ahead(self._iterate_workers(batches, numbers, epoch))
        return self._iterate_here(batches, numbers, epoch)

    def _one_ahead(self, batches):
        """Make the next batch, which is normalising and mixing, in a thread while the last one is used."""
        if self._following is not None:  # of an abandoned iteration: two threads must not read the workers' pipes
            concurrent.futures.wait([self._following])
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            self._following = thread.submit(next, batches, _END)
            try:
                while (batch := self._following.result()) is not _END:
                    self._following = following = thread.submit(next, batches, _END)
                    yield batch
                    if self._following is not following:
                        raise RuntimeError("another iteration of this loader was started")
            except (KeyboardInterrupt, GeneratorExit) as end:
                # the thread, which is waited for now, may wait for a worker that hangs
                seconds = CLOSE_SECONDS if isinstance(end, GeneratorExit) else 0
                if concurrent.futures.wait([self._following], seconds).not_done:
                    self.close()
                raise

    def _iterate_here(self, batches, numbers, epoch):
        for number in numbers:
            batch = batches[number]
            images = np.empty((len(batch), *self._image_shape), np.uint8)
            labels = np.empty(len(batch), np.int64)
            valid = np.ones(len(batch), bool)
            for position, (index, repeat) in enumerate(batch.tolist()):
                label = self.maker.make(epoch, index, repeat, images[position], self._note_skipped)
                valid[position] = label is not None
                labels[position] = -1 if label is None else label
            yield from self._finish(images, labels, valid, epoch, number)

    def _iterate_workers(self, batches, numbers, epoch):
        if self._pool is None:
            self._pool = WorkerPool(
                self.maker,
                self.num_workers,
                self._num_slots,
                self.batch_size,
                self._image_shape,
                self._timeout_seconds,
            )
        pool = self._pool
        pool.is_to_stop = self._is_to_stop
        try:
            pool.new_generation()
            waiting = {}  # batch -> tasks not yet answered
            failures = {}  # batch -> why it cannot be made; said in its turn, where a loader without workers meets it
            for number in numbers[: self._num_slots]:
                waiting[number] = self._submit(number, batches[number], epoch)
            for number in numbers:
                while waiting[number]:
                    for ticket, skipped, error in pool.collect():
                        waiting[ticket] -= 1
                        if error is not None:
                            failures.setdefault(ticket, error)
                        for index, reason in skipped:
                            self._note_skipped(index, reason)
                if number in failures:
                    raise failures[number]
                slot, size = number % self._num_slots, len(batches[number])
                memory = pool.memory
                finished = list(
                    self._finish(
                        memory.images[slot, :size],
                        memory.labels[slot, :size].copy(),
                        memory.valid[slot, :size].astype(bool),
                        epoch,
                        number,
                    )
                )
                following = number + self._num_slots
                if following < len(batches):  # before the yield: the workers go on while the batch is used
                    waiting[following] = self._submit(following, batches[following], epoch)
                yield from finished
        except UserError:
            self.close()
            raise

    def _submit(self, number, batch, epoch):
        """Hand out the tasks of a batch and return how many they are."""
        chunk = min(MAX_CHUNK, math.ceil(len(batch) / self.num_workers))
        starts = range(0, len(batch), chunk)
        for start in starts:
            self._pool.submit(number, number % self._num_slots, start, epoch, batch[start : start + chunk])
        return len(starts)

    def _finish(self, images, labels, valid, epoch, number):
        if not valid.all():
            images, labels = images[valid], labels[valid]
        if len(labels):
            images = self._normalize(images)
            yield (images, labels) if self.mix is None else self.mix(images, labels, epoch, number)

    def _note_skipped(self, index, reason):
        if index not in self._skipped:
            self._skipped[index] = reason
            get_logger().warning("corrupt image left out: %s (%s)", self.dataset.describe(index), reason)

    def hurry(self):
        self._is_to_stop = True
        if self._pool is not None:
            self._pool.is_to_stop = True

    def close(self):
        """End the workers; the next iteration starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
