"""The training loop. What happens beside the arithmetic (log, records, checkpoints, averages) is in hooks/.

    for each epoch:
        for each window of ACCUM_ITER micro-batches:      # the last window of an epoch may be shorter
            forward_backward: add up the gradients of the window's mean loss
            precision.step: check, average, unscale and clip, update or skip (amp/plain.py)
        evaluate, save
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import paddle

from . import checkpoint, half_cpu
from .amp import Precision, StepResult
from .config import to_yaml
from .evaluation import EvaluationStopped, evaluate, raise_together
from .hooks import Hook
from .metrics import ClassReport, num_correct
from .optim import load_optimizer_state, optimizer_state
from .parallel.protocol import Parallel, average_statistics
from .progress import Progress, Resumed, RunningMean, Timer, recount, units
from .reading import Batch, MicroBatches, ReadAhead, snapshot
from .runtime import UserError, get_logger
from .saved_config import check_classes, check_rest_of_epoch


class TrainingError(RuntimeError):
    """The run cannot go on; the text is one line for the user."""


def forward_backward(
    model: Callable, criterion: Callable, precision: Precision, micro_batches: MicroBatches,
    teacher: Callable | None = None,
) -> Iterator[tuple[paddle.Tensor, Any, int]]:
    """Add the gradients of a window's mean loss; yield (loss, correctly classified images, images) of each micro-batch.

    Args:
        micro_batches: sized iterable of (images, labels), arrays; each loss is divided by its length.
        teacher: gives the criterion its second argument from (images, labels); None: the labels.
    """
    for pixels, classes in micro_batches:
        images, labels = paddle.to_tensor(pixels), paddle.to_tensor(classes)
        targets = labels if teacher is None else teacher(images, labels)
        with precision.forward_context():
            logits = model(images)
            loss = criterion(logits, targets)
        precision.backward(loss / len(micro_batches))
        yield loss.detach(), num_correct(logits.detach(), labels), len(labels)


def steps_per_epoch(parts):
    """Return the optimizer steps of an epoch; the last one may have fewer micro-batches."""
    return math.ceil(len(parts.train_loader) / parts.config.TRAIN.ACCUM_ITER)


class Trainer:
    """Owns the objects of a run and the order in which they are called.

    Hooks read its attributes, among them ``last_result``, the StepResult of the last step, and ``evaluation``, the
    result of the evaluation of this epoch or None. ``stopping`` says that all processes end the run after this call.
    """

    def __init__(self, parts, *, optimizer, schedule, ema, hooks):
        self.config = parts.config
        self.model = parts.model
        self.criterion = parts.criterion
        self.teacher = parts.teacher
        self.precision: Precision = parts.precision
        self.parallel: Parallel = parts.parallel
        self.train_loader = parts.train_loader
        self.eval_loader = parts.eval_loader
        self.forward = self.parallel.trained(self.model)
        self.steps_per_epoch = steps_per_epoch(parts)
        self.optimizer = optimizer
        self.schedule = schedule
        self.ema = ema
        self.hooks: list[Hook] = []
        self.add_hooks(hooks)
        done = self.config.TRAIN.LAST_EPOCH
        self.progress = Progress(epoch=done, step=done * self.steps_per_epoch)
        self.mean = RunningMean()
        self.timer = Timer()
        self.evaluation: dict[str, Any] | None = None
        self.class_report: ClassReport | None = None  # of the evaluation after the last epoch
        self.last_result: StepResult | None = None
        self.resumed: Resumed | None = None
        self.stop_requested = False  # on this process, at any moment
        self.stop_reason = "a signal"  # to this process or another
        self.stopping = False  # agreed on by all processes; nothing but this decides what they do next

    def add_hooks(self, hooks: Iterable[Hook]) -> None:
        """Have these called, too, in the order of their priorities."""
        self.hooks = sorted([*self.hooks, *hooks], key=lambda hook: hook.priority)

    def call(self, event: str) -> None:
        for hook in self.hooks:
            getattr(hook, event)(self)

    def request_stop(self, reason: str) -> None:
        """End the run, on all processes, with the running step or batch; `reason` is said at the end."""
        self.stop_requested, self.stop_reason = True, reason

    def fit(self) -> None:
        """Train to the last epoch, or to the end of the step or batch in which a stop was requested."""
        start = time.monotonic() - self.progress.seconds
        self.call("before_train")
        if self.progress.epoch >= self.config.TRAIN.NUM_EPOCHS:  # only what a kill left unwritten is left to do
            with contextlib.suppress(EvaluationStopped):
                self.evaluation = self._evaluate_classes()
        while self.progress.epoch < self.config.TRAIN.NUM_EPOCHS and not self.stopping:
            self.train_epoch(start)
            self.progress.seconds = time.monotonic() - start
        self.call("after_train")
        if self.progress.epoch >= self.config.TRAIN.NUM_EPOCHS:
            self._check_outcome()

    def _check_outcome(self) -> None:
        """Raise TrainingError where the last epoch came to nothing; everything is written."""
        images, broken = (self.evaluation[name] for name in ("images", "non_finite")) if self.evaluation else (0, 0)
        problem = None
        if self.progress.skipped_in_a_row >= self.steps_per_epoch:
            problem = "no step of the last epoch had finite gradients"
        elif 4 * broken > images:  # one odd image fails no run, and what overflows is right by chance
            problem = f"the last evaluation found a loss that is not finite for {broken} of {images} images"
        if problem:
            raise TrainingError(f"{problem}; {self._advice()}")

    def _advice(self) -> str:
        advice = "lower TRAIN.BASE_LR or lengthen TRAIN.WARMUP_EPOCHS"
        advice += " or use -amp_dtype bfloat16" if self.precision.dtype == "float16" else ""
        return advice + ("" if self.precision.is_plain else " or train in float32, without -amp")

    def train_epoch(self, start: float) -> None:
        """Train the rest of the running epoch, evaluate when due."""
        progress, num_batches = self.progress, len(self.train_loader)
        self.evaluation = None
        self.model.train()
        self.train_loader.set_epoch(progress.epoch)
        self.call("before_epoch")
        batches = ReadAhead(self.train_loader.iterate(progress.batch), num_batches - progress.batch)
        if self.parallel.any(batches.failure is not None):
            self._end_unreadable(batches.failure)
        while progress.batch < num_batches:
            self.train_step(batches, min(self.config.TRAIN.ACCUM_ITER, num_batches - progress.batch), batches.seconds)
            if not self.stop_requested:
                batches.read()  # before the vote: what cannot be read ends the run where a signal would
            progress.seconds = time.monotonic() - start
            if self.reports():
                self.mean.exchange(self.parallel)
            self.stopping = self.parallel.any(self.stop_requested or batches.failure is not None)
            self.call("after_step")
            if self.stopping:
                raise_together(self.parallel, batches.failure)
                return
        progress.epoch += 1
        progress.batch = 0
        is_last = progress.epoch == self.config.TRAIN.NUM_EPOCHS
        if is_last or progress.epoch % self.config.VALIDATE_FREQ == 0:
            try:
                self.evaluate()
            except (UserError, EvaluationStopped) as error:
                progress.epoch, progress.batch = progress.epoch - 1, num_batches  # a resume evaluates it first
                self.call("on_unreadable")
                if isinstance(error, UserError):
                    raise
                self.stopping = True
                return
            progress.seconds = time.monotonic() - start  # before the epoch's report and checkpoint
        self.stopping = self.parallel.any(self.stop_requested)
        self.call("after_epoch")
        self.mean = RunningMean()

    @property
    def epoch_step(self) -> int:
        """How many steps of the running epoch are done, skipped ones too."""
        return math.ceil(self.progress.batch / self.config.TRAIN.ACCUM_ITER)

    def reports(self) -> bool:
        """Return whether this step is written down; the running mean is that of all replicas then."""
        return self.epoch_step % self.config.REPORT_FREQ == 0 or self.epoch_step == self.steps_per_epoch

    def train_step(self, batches: Iterator[Batch], window: int, waited: float = 0.0) -> None:
        """Make one optimizer step of ``window`` micro-batches; the first of them took ``waited`` seconds before."""
        self.call("before_step")
        start = time.perf_counter()
        self.optimizer.set_lr(self.schedule(self.progress.step))
        micro_batches = MicroBatches(batches, window, waited)
        undo = snapshot(self.model, self.parallel) if window > 1 else None  # the first batch has been read before
        results = list(self.forward_backward(micro_batches))
        if undo is not None and self.parallel.any(micro_batches.failure is not None):
            undo()
            self._end_unreadable(micro_batches.failure)
        for loss, correct, count in results:
            self.mean.add(loss, correct, count)
        result = self.precision.step(self.optimizer)
        self.progress.batch += window
        self._count(result)
        num_images = sum(count for *_, count in results) * self.parallel.data_size
        self.timer.add(time.perf_counter() - start + waited, micro_batches.reader_seconds, num_images)

    def _end_unreadable(self, failure: UserError | None) -> None:
        """Save the steps so far and end the run on all processes; the next step is the first of a resume."""
        self.call("on_unreadable")
        raise_together(self.parallel, failure)

    def forward_backward(self, micro_batches: MicroBatches) -> Iterable[tuple[paddle.Tensor, Any, int]]:
        """Add the gradients of a window, by the pipeline's schedule where the model is spread over one."""
        run = self.parallel.pipeline_schedule or forward_backward
        with half_cpu.rounded_once(self.model) if len(micro_batches) > 1 else contextlib.nullcontext():
            yield from run(self.forward, self.criterion, self.precision, micro_batches, self.teacher)

    def _count(self, result: StepResult) -> None:
        progress, self.last_result = self.progress, result
        if result.applied:
            progress.step += 1
            progress.skipped_in_a_row = 0
            self.call("after_update")
            return
        progress.skipped_steps += 1
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row >= self.config.TRAIN.MAX_SKIPPED_STEPS:
            raise TrainingError(
                f"{progress.skipped_in_a_row} steps in a row had gradients that are not finite: loss scale "
                f"{result.loss_scale:g}, step {progress.step}, first bad parameter {result.first_bad}; {self._advice()}"
            )

    def evaluate(self) -> None:
        """Evaluate the averaged weights where there are some, else the model's own."""
        self.call("before_evaluation")
        self.evaluation = self._evaluate_classes()
        best, top1 = self.progress.best_top1, self.evaluation["top1"]
        self.evaluation["is_best"] = best is None or top1 > best
        self.progress.best_top1 = top1 if self.evaluation["is_best"] else best
        self.call("after_evaluation")

    def _evaluate_classes(self) -> dict[str, Any]:
        is_last = self.progress.epoch >= self.config.TRAIN.NUM_EPOCHS
        report = ClassReport(self.config.MODEL.NUM_CLASSES) if is_last else None
        average_statistics(self.parallel, self.model, self.ema.state_dict())
        with self.ema.applied(self.model):
            parts = self.model, self.precision, self.eval_loader, self.parallel
            result = evaluate(*parts, report, lambda: self.stop_requested)
        self.class_report = report
        return result

    def state(self) -> dict[str, Any]:
        """Return the complete state of the run; every process must call it.

        The replicas' running statistics become their mean, here too, not only in what is returned.
        """
        average_statistics(self.parallel, self.model, self.ema.state_dict())
        mean_sums = self.mean.exchange(self.parallel)
        self.mean.start(mean_sums, self.parallel.is_main)  # the order of additions that a resumed run has
        named = self.precision.master_params(self.model)
        return {
            "format": checkpoint.FORMAT,
            "model": self.parallel.merge(self.precision.model_state_dict(self.model)),
            "optimizer": self.parallel.merge(optimizer_state(self.optimizer, self.parallel.owned(named))),
            "precision": {"mode": self.precision.mode, "dtype": self.precision.dtype,
                          "state": self.precision.state_dict()},  # fmt: skip
            "ema": self.parallel.merge(self.ema.state_dict()),
            "progress": dataclasses.asdict(self.progress) | {"sums": mean_sums.tolist()},
            "rng": self.parallel.gather(self.parallel.rng_state()),
            "topology": self.parallel.describe(),
            "units": self.units(),
            "config": to_yaml(self.config),
            "run": self._of_run_folder(),
        }

    def _of_run_folder(self) -> dict[str, Any]:
        run: dict[str, Any] = {}
        for hook in self.hooks if self.parallel.is_main else ():
            hook.on_save(self, run)
        return run

    def load_state(self, state, path):
        """Continue from what :meth:`state` returned, in this or in another precision mode."""
        check_classes(state["config"], self.config, f"-resume: {path}")
        check_rest_of_epoch(state, self.config, len(self.train_loader.dataset), path)
        own = self.precision.model_state_dict(self.model)
        model = self.parallel.cut(state["model"])
        checkpoint.check_matches(own, model, path)
        self.precision.load_model_state_dict(self.model, model)
        named = self.parallel.owned(self.precision.master_params(self.model))
        try:
            load_optimizer_state(self.optimizer, named, self.parallel.cut(state["optimizer"], named))
        except UserError as error:
            raise UserError(f"-resume: {path}: {error}") from None
        saved = state["precision"]
        if saved["mode"] == self.precision.mode and saved["dtype"] == self.precision.dtype:
            self.precision.load_state_dict(saved["state"])
        else:
            get_logger().info(
                f"-resume: {path} was trained as {saved['mode']}/{saved['dtype']}; continuing as "
                f"{self.precision.mode}/{self.precision.dtype} with a fresh loss scale {self.precision.loss_scale:g}"
            )
        self.ema.load_state_dict(self.parallel.cut(state["ema"]), self.precision.model_state_dict(self.model))
        fields = dict(state["progress"])
        sums = np.array(fields.pop("sums"))
        self.progress = Progress(**fields)
        recount(self.progress, state.get("units", {}), self.units(), len(self.train_loader))
        if self.progress.batch:  # else the next epoch starts with empty sums
            self.mean.start(sums, self.parallel.is_main)
        if state.get("topology", self.parallel.describe()) == self.parallel.describe():
            self.parallel.set_rng_state(state["rng"][self.parallel.rank])
        else:  # draws that some processes must share cannot be taken from others
            self.parallel.seed_dropout(self.config.SEED + self.progress.step)
            get_logger().info(f"-resume: saved by {state['topology']}; dropout goes on with new draws")
        self.resumed = Resumed(path, state.get("run", {}))

    def units(self) -> dict[str, int]:
        """Return what the progress counts, see `progress.units`."""
        return units(self.config, self.parallel.data_size, self.steps_per_epoch, len(self.train_loader.dataset))
