"""How far a run is, how well it does and how fast: the counts, means and times of training."""

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import paddle

from .parallel.protocol import Parallel
from .runtime import UserError, get_logger
from .saved_config import only_evaluation_is_left

WARMUP_STEPS = 5  # steps of a process that its rates leave out: caches fill, kernels are chosen
CHANGES = {
    "images_per_step": ("the total batch size", "another -batch_size or -accum_iter would keep the recipe"),
    "images": ("the number of training images", "where a fixed fifth is for evaluation, some of it was trained on"),
}


@dataclasses.dataclass
class Progress:
    """How far the run is; everything here is part of a checkpoint."""

    epoch: int = 0  # whole epochs done
    batch: int = 0  # micro-batches of the running epoch done, always at the end of a window
    step: int = 0  # optimizer steps applied; the learning rate follows this count
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    best_top1: float | None = None  # before the first evaluation
    seconds: float = 0.0


def units(config: Any, replicas: int, steps_per_epoch: int, images: int) -> dict[str, int]:
    """Return what a batch and a step of a progress stand for over all replicas; `images`: those of the training set."""
    images_per_batch = config.DATA.BATCH_SIZE * replicas
    return {
        "images_per_batch": images_per_batch,
        "images_per_step": images_per_batch * config.TRAIN.ACCUM_ITER,
        "steps_per_epoch": steps_per_epoch,
        "images": images,
    }


def recount(progress: Progress, units: dict[str, int], own: dict[str, int], batches: int) -> None:
    """Express a progress counted in other units in this run's, so that no image of the epoch is left out.

    Whole steps of this run only: a few images may come twice. The schedule goes on at the same part of the run.

    Raises:
        UserError: more of the epoch is done than it has here.
    """
    if own | units == own:
        return
    images, accum_iter = progress.batch * units["images_per_batch"], own["images_per_step"] // own["images_per_batch"]
    is_whole = only_evaluation_is_left(progress.batch, units)
    progress.batch = batches if is_whole else images // own["images_per_step"] * accum_iter
    if progress.batch > batches:
        raise UserError(f"-resume: {images} images of the running epoch are done, here it has fewer: other data?")
    before, progress.step = progress.step, round(progress.step * own["steps_per_epoch"] / units["steps_per_epoch"])
    for key, (words, hint) in CHANGES.items():
        if units.get(key, own[key]) != own[key]:
            get_logger().warning(f"-resume: {words} was {units[key]}, now it is {own[key]}: step {before} counts as "
                                 f"{progress.step}; {hint}")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Resumed:
    """The checkpoint that a training continues from, and what it says of its run folder (`checkpoint.Store`)."""

    path: Path
    run: dict[str, Any]


class RunningMean:
    """Mean loss and top-1 of the running epoch, read from the device only when someone asks.

    Of this process's images, and of the other replicas' as far as they were known at the last :meth:`exchange`. Without
    any finite loss both are NaN.
    """

    def __init__(self):
        self.sums = np.zeros(3)  # loss x images, correct, images
        self.others = np.zeros(3)  # the same of the other replicas
        self._pending: list[tuple[paddle.Tensor, Any, int]] = []
        self.last_loss = 0.0

    def add(self, loss: paddle.Tensor, correct: Any, count: int) -> None:
        self._pending.append((loss.detach(), correct, count))

    def flush(self) -> np.ndarray:
        """Read what is pending and return the sums of loss x images, correct and images."""
        for loss, correct, count in self._pending:
            self.last_loss = cast(float, loss.item())
            if math.isfinite(self.last_loss):  # one overflow must not hide the loss of a whole epoch
                self.sums += (self.last_loss * count, float(correct), count)
        self._pending.clear()
        return self.sums

    def exchange(self, parallel: Parallel) -> np.ndarray:
        """Learn the other replicas' sums, return those of all; ``last_loss`` becomes the mean of theirs. A collective.
        """
        own = self.flush()
        *total, last, replicas = parallel.sum([*own.tolist(), self.last_loss, 1])
        self.others, self.last_loss = np.array(total) - own, last / replicas
        return np.array(total)

    def start(self, total: np.ndarray, is_main: bool) -> None:
        """Go on from the sums of all replicas: those of `is_main`, who counts them as its own."""
        nothing = np.zeros(3)
        self.sums, self.others = (total, nothing) if is_main else (nothing, total)

    @property
    def loss(self) -> float:
        loss, _, count = self.flush() + self.others
        return float(loss / count) if count else math.nan

    @property
    def top1(self) -> float:
        _, correct, count = self.flush() + self.others
        return float(correct / count) if count else math.nan


class Timer:
    """Seconds of the training steps of this process and the images of all replicas in them, without the first few."""

    def __init__(self):
        self.steps = 0
        self.images = 0
        self.seconds = 0.0
        self.last = {"batch_cost": 0.0, "reader_cost": 0.0, "images": 0}

    def add(self, seconds: float, reader_seconds: float, images: int) -> None:
        self.last = {"batch_cost": seconds, "reader_cost": reader_seconds, "images": images}
        self.steps += 1
        if self.steps > WARMUP_STEPS:
            self.images += images
            self.seconds += seconds

    @property
    def seconds_per_step(self) -> float:
        counted = self.steps - WARMUP_STEPS
        return self.seconds / counted if counted > 0 else self.last["batch_cost"]

    @property
    def images_per_second(self) -> float:
        if self.seconds:
            return self.images / self.seconds
        return self.last["images"] / self.last["batch_cost"] if self.last["batch_cost"] else 0.0
