"""Accuracy and loss of a model over a data set, in the same forward context as in training."""

import time

import numpy as np
import paddle

from . import half_cpu
from .metrics import Accumulator
from .runtime import UserError, progress_bar

NO_IMAGE = "the evaluation has no image: all of them are corrupt, and DATA.SKIP_CORRUPT left them out"


class EvaluationStopped(Exception):
    """The evaluation was to stop before its last batch."""


def evaluate(model, precision, loader, parallel, class_report=None, stop=lambda: False):
    """Return ``{"top1", "top5", "loss", "images", "non_finite", "seconds"}`` over every image exactly once.

    The same on all processes, which must hold the same weights and running statistics. Accuracies are fractions 0-1;
    the loss is plain cross entropy whatever the training criterion is, so that recipes can be compared. A
    ``class_report`` is filled on the way, on all processes.

    Raises:
        UserError: there was no image, or one that cannot be read, on every process, which can all go on.
        EvaluationStopped: ``stop()`` was True on one of them before a batch; on every process, too.
    """
    model.eval()
    start, failures, stops = time.monotonic(), [], []
    accumulator = Accumulator()
    bar = progress_bar(loader.num_images, "evaluate", "img", parallel.is_main)
    with paddle.no_grad(), half_cpu.frozen(model), bar:
        for images, labels in _readable(loader, parallel, failures, stop, stops):
            with precision.forward_context():
                logits = parallel.predict(model, paddle.to_tensor(images))
            logits = logits.astype("float32")
            accumulator.add(logits, labels)
            if class_report is not None:
                class_report.add(logits, labels)
            bar.update(len(labels))
    model.train()
    raise_together(parallel, failures[0] if failures else None)
    if parallel.any(any(stops)):
        raise EvaluationStopped
    total = Accumulator()
    total.merge(_sum(accumulator.sums, parallel))
    result = total.result()
    if not result["images"]:
        raise UserError(NO_IMAGE)
    if class_report is not None:
        class_report.merge(_sum(class_report.sums, parallel) - class_report.sums)
    return result | {"seconds": time.monotonic() - start}


def _readable(loader, parallel, failures, stop, stops):
    """Yield the batches up to the first that this process, or one that makes its passes with it, cannot read, or before
    which it is to stop; why goes into `failures` where it is this one, and what `stop` says of each into `stops`."""
    batches = iter(loader)
    while True:
        batch = None
        try:
            batch = next(batches, None)
        except UserError as error:
            failures.append(error)
        stops.append(batch is not None and stop())
        if parallel.any_in_pass(bool(failures) or stops[-1]) or batch is None:
            return
        yield batch


def raise_together(parallel, failure):
    """Raise on every process its own failure, or that of another process; return where none has one. A collective."""
    failures = [text for text in parallel.gather(failure and str(failure)) if text]
    if failures:
        raise failure or UserError(failures[0])


def _sum(integers, parallel):
    """Return the sums over the processes; float64 holds them exactly."""
    return np.rint(np.asarray(parallel.sum(integers.tolist()))).astype("int64")
