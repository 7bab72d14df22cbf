"""What happens beside the arithmetic of training: log lines, records, averages, checkpoints.

A hook is an object with a priority (lower runs first) and any of the methods of :class:`Hook`. Users add their own with
``TRAIN.HOOKS: ["my_module:MyHook"]``.
"""

import importlib
import math
import time
from datetime import timedelta

from paddle import profiler

from . import checkpoint
from .runtime import UserError, device_of, get_logger, peak_memory_bytes, progress_bar


class Hook:
    """The points at which a hook is called, each with the trainer; every method here does nothing."""

    priority = 50

    def before_train(self, trainer): ...

    def before_epoch(self, trainer): ...

    def before_step(self, trainer): ...

    def after_update(self, trainer):
        """After a step that changed the weights (never after a skipped one)."""

    def after_step(self, trainer):
        """After every step, applied or skipped."""

    def before_evaluation(self, trainer): ...

    def after_evaluation(self, trainer): ...

    def after_epoch(self, trainer): ...

    def after_train(self, trainer): ...


class EmaHook(Hook):
    """Moves the averaged weights, on real steps only."""

    priority = 0

    def after_update(self, trainer):
        trainer.ema.update(trainer.precision.model_state_dict(trainer.model))


class ProfilerHook(Hook):
    """Records ten steps with Paddle's profiler into ``profile/``, a trace for chrome://tracing or Perfetto.

    The run ends with the tenth, with a checkpoint, as in Apex's example.

    Args:
        run: the run folder.
        first_step: how many steps of this process come before, skipped ones included.
    """

    priority = 5
    num_steps = 10

    def __init__(self, run, first_step):
        self.path = run.path / "profile"
        self.first_step = first_step
        self.steps = 0  # begun by this process
        self.profiler = None

    def before_step(self, trainer):
        if self.steps == self.first_step:
            names = dict.fromkeys(["CPU", device_of(trainer.precision.device).profiler_target])
            targets = [getattr(profiler.ProfilerTarget, name) for name in names]
            write = profiler.export_chrome_tracing(str(self.path))
            self.profiler = profiler.Profiler(targets=targets, on_trace_ready=write)
            self.profiler.start()
        self.steps += 1
        if self.steps == self.first_step + self.num_steps:
            trainer.request_stop("the end of the profile")

    def after_step(self, trainer):
        if self.profiler is None:
            return
        self.profiler.step()
        if self.steps == self.first_step + self.num_steps:
            self._stop()

    def after_train(self, trainer):
        if self.profiler is not None:
            self._stop()

    def _stop(self):
        self.profiler.stop()
        self.profiler = None
        get_logger().info(f"profile of steps {self.first_step} to {self.steps - 1}: {self.path}")


class TotalBatchSizeHook(Hook):
    """Says how many images one optimizer step sees."""

    priority = 9

    def before_train(self, trainer):
        per_process, accumulated = trainer.config.DATA.BATCH_SIZE, trainer.config.TRAIN.ACCUM_ITER
        replicas = trainer.parallel.data_size
        get_logger().info(
            f"total batch size = {per_process * accumulated * replicas} ({per_process} x {accumulated} accumulated x "
            f"{replicas} replicas), {trainer.steps_per_epoch} steps an epoch"
        )


class LogHook(Hook):
    """Log lines every REPORT_FREQ steps, a progress bar on a terminal, one line an epoch."""

    priority = 10

    def __init__(self):
        self.logger = get_logger()
        self.bar = None
        self.seconds_before = 0.0  # of the run, when the epoch began

    def before_train(self, trainer):
        names = ", ".join(f"{type(hook).__name__} ({hook.priority})" for hook in trainer.hooks)
        self.logger.info(f"hooks, lower priorities first: {names}")
        self.logger.info(f"Start training from epoch {trainer.progress.epoch + 1}.")

    def before_epoch(self, trainer):
        num_batches = len(trainer.train_loader)
        name = f"epoch {trainer.progress.epoch + 1}/{trainer.config.TRAIN.NUM_EPOCHS}"
        self.seconds_before = trainer.progress.seconds
        self.bar = progress_bar(num_batches, name, "batch", trainer.parallel.is_main, trainer.progress.batch)

    def after_step(self, trainer):
        self.bar.update(trainer.progress.batch - self.bar.n)
        step = math.ceil(trainer.progress.batch / trainer.config.TRAIN.ACCUM_ITER)
        if not trainer.last_result.applied:
            self.logger.info(
                f"step skipped: gradients of {trainer.last_result.first_bad} are not finite, loss scale is now "
                f"{trainer.precision.loss_scale:g} ({trainer.progress.skipped_steps} skipped so far)"
            )
        if step % trainer.config.REPORT_FREQ == 0 or step == trainer.steps_per_epoch:
            self.logger.info(step_line(trainer, step))
            self.bar.set_postfix_str(f"loss {trainer.mean.loss:.4f}, top1 {trainer.mean.top1:.4f}")

    def after_epoch(self, trainer):
        self.bar.close()
        epoch, epochs = trainer.progress.epoch, trainer.config.TRAIN.NUM_EPOCHS
        self.logger.info(
            f"----- Epoch[{epoch:03d}/{epochs:03d}], Train Loss: {trainer.mean.loss:.4f}, "
            f"Train Acc: {trainer.mean.top1:.4f}, time: {trainer.progress.seconds - self.seconds_before:.2f}"
        )

    def after_evaluation(self, trainer):
        epoch, epochs, result = trainer.progress.epoch, trainer.config.TRAIN.NUM_EPOCHS, trainer.evaluation
        best = " (best)" if result["is_best"] else ""
        self.logger.info(
            f"----- Epoch[{epoch:03d}/{epochs:03d}], Validation Loss: {result['loss']:.4f}, "
            f"Validation Acc@1: {result['top1']:.4f}{best}, Validation Acc@5: {result['top5']:.4f}, "
            f"time: {result['seconds']:.2f}"
        )

    def after_train(self, trainer):
        if self.bar is not None:
            self.bar.close()


def step_line(trainer, step):
    """Return the log line of a step; scripts grep its tokens ``loss: top1: batch_cost: reader_cost: ips: eta:``."""
    timer, mean, progress, num_epochs = trainer.timer, trainer.mean, trainer.progress, trainer.config.TRAIN.NUM_EPOCHS
    remaining = (num_epochs - progress.epoch) * trainer.steps_per_epoch - step
    batch_cost = timer.last["batch_cost"]
    mean.flush()
    return ", ".join(
        (
            f"Epoch[{progress.epoch + 1:03d}/{num_epochs:03d}]",
            f"Step[{step:04d}/{trainer.steps_per_epoch:04d}]",
            f"lr: {trainer.optimizer.get_lr():.6g}",
            f"loss: {mean.last_loss:.4f} ({mean.loss:.4f})",
            f"top1: {mean.top1:.4f}",
            f"loss_scale: {trainer.precision.loss_scale:g}",
            f"batch_cost: {batch_cost:.5f}s",
            f"reader_cost: {timer.last['reader_cost']:.5f}s",
            f"ips: {timer.last['images'] / max(batch_cost, 1e-9):.2f} samples/s",
            f"eta: {timedelta(seconds=round(remaining * timer.seconds_per_step))}",
        )
    )


class RecordHook(Hook):
    """``metrics.jsonl`` and VisualDL scalars, rank 0 only; ``epoch`` is the number of the epoch, from 1."""

    priority = 20

    def __init__(self, run):
        self.run = run
        self.writer = None

    def before_train(self, trainer):
        from visualdl import LogWriter

        self.writer = LogWriter(logdir=str(self.run.path / "visualdl"), display_name=self.run.path.name)

    def after_step(self, trainer):
        step = math.ceil(trainer.progress.batch / trainer.config.TRAIN.ACCUM_ITER)
        if step % trainer.config.REPORT_FREQ and step != trainer.steps_per_epoch:
            return
        record = {
            "loss": trainer.mean.loss,
            "top1": trainer.mean.top1,
            "lr": trainer.optimizer.get_lr(),
            "loss_scale": trainer.precision.loss_scale,
            "skipped_steps": trainer.progress.skipped_steps,
            "images_per_second": trainer.timer.images_per_second,
        }
        if trainer.last_result.grad_norm is not None:
            record["grad_norm"] = trainer.last_result.grad_norm
        self._write("train", trainer, record)

    def after_evaluation(self, trainer):
        self._write("eval", trainer, {name: trainer.evaluation[name] for name in ("top1", "top5", "loss")})

    def after_train(self, trainer):
        self.writer.close()

    def _write(self, kind, trainer, record):
        progress = trainer.progress
        epoch = progress.epoch + (kind == "train")  # an evaluation follows a whole epoch, which is counted then
        position = {"kind": kind, "epoch": epoch, "batch": progress.batch, "step": progress.step}
        self.run.append_metrics(position | {key: _jsonable(value) for key, value in record.items()})
        taken = progress.step + progress.skipped_steps
        for name, value in record.items():
            self.writer.add_scalar(tag=f"{kind}/{name}", step=taken, value=float(value))


def _jsonable(value):
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


class CheckpointHook(Hook):
    """Complete states every SAVE_FREQ epochs and SAVE_STEPS steps, at the end, and where a stop was requested."""

    priority = 90

    def __init__(self, run):
        self.store = checkpoint.Store(run.path, keep=1)
        self.saved_best = False
        self.path = None

    def before_train(self, trainer):
        self.store.keep = trainer.config.KEEP

    def after_step(self, trainer):
        due = trainer.config.SAVE_STEPS and trainer.progress.step % trainer.config.SAVE_STEPS == 0
        unfinished = trainer.progress.batch < len(trainer.train_loader)
        if trainer.stopping or (unfinished and due and trainer.last_result.applied):
            self._save(trainer, "step")

    def after_epoch(self, trainer):
        epoch, config = trainer.progress.epoch, trainer.config
        is_best = bool(trainer.evaluation and trainer.evaluation["is_best"])
        is_last = epoch == config.TRAIN.NUM_EPOCHS
        if is_best or is_last or trainer.stopping or epoch % config.SAVE_FREQ == 0:
            self._save(trainer, f"epoch_{epoch:04d}", is_best)

    def _save(self, trainer, name, is_best=False):
        state = trainer.state()  # every process takes part, one writes
        if trainer.parallel.is_main:
            start = time.time()
            self.path = self.store.save(state, name, is_best)
            get_logger().info(f"saved {self.path} ({time.time() - start:.1f} s)")
        trainer.parallel.barrier()


class ReportHook(Hook):
    """``report.json`` after every evaluation and at the end, so that a killed run leaves one too."""

    priority = 95

    def __init__(self, run, report):
        self.run = run
        self.report = report

    def after_epoch(self, trainer):
        latest, loss = self.run.path / "latest.pdparams", trainer.mean.loss
        self.report.update(
            epochs=trainer.progress.epoch,
            steps=trainer.progress.step,
            skipped_steps=trainer.progress.skipped_steps,
            loss_scale=trainer.precision.loss_scale,
            train_loss=loss if math.isfinite(loss) else None,
            best_top1=trainer.progress.best_top1,
            images_per_second=trainer.timer.images_per_second,
            seconds=trainer.progress.seconds,
            peak_memory_bytes=peak_memory_bytes(self.report["device"]),
            checkpoint=str(latest) if latest.exists() else None,
        )
        if trainer.evaluation:
            evaluation = trainer.evaluation
            self.report.update(top1=evaluation["top1"], top5=evaluation["top5"], eval_images=evaluation["images"])
        self.run.write_report(self.report)


def load_hooks(names):
    """Return new instances of the user's hook classes, named ``module:Class``.

    Raises:
        UserError: a name that does not lead to a subclass of :class:`Hook`.
    """
    hooks = []
    for name in names:
        module_name, _, class_name = name.partition(":")
        try:
            kind = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"TRAIN.HOOKS: {name!r}: expected module:Class that can be imported ({error})") from None
        if not (isinstance(kind, type) and issubclass(kind, Hook)):
            raise UserError(f"TRAIN.HOOKS: {name!r}: is not a subclass of image_classification.hooks.Hook")
        hooks.append(kind())
    return hooks
