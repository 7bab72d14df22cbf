"""What a run says while it trains."""

import time
from datetime import timedelta

from ..runtime import SILENT_SECONDS, get_logger, progress_bar
from .hook import Hook


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
    """Log lines every REPORT_FREQ steps and after each long silence, a progress bar on a terminal, a line an epoch.

    Loss and top-1 are those of all replicas every REPORT_FREQ steps; after a silence, of the others' images up to the
    last such step.
    """

    priority = 10

    def __init__(self):
        self.logger = get_logger()
        self.bar = None
        self.seconds_before = self.seconds_trained = 0.0  # of the run: as the epoch begins, and as its last step ends
        self.last_line = time.monotonic()

    def before_train(self, trainer):
        names = ", ".join(f"{type(hook).__name__} ({hook.priority})" for hook in trainer.hooks)
        self.logger.info(f"hooks, lower priorities first: {names}")
        if trainer.progress.epoch < trainer.config.TRAIN.NUM_EPOCHS:
            self.logger.info(f"Start training from epoch {trainer.progress.epoch + 1}.")

    def before_epoch(self, trainer):
        num_batches = len(trainer.train_loader)
        name = f"epoch {trainer.progress.epoch + 1}/{trainer.config.TRAIN.NUM_EPOCHS}"
        self.seconds_before = self.seconds_trained = trainer.progress.seconds
        self.last_line = time.monotonic()
        shown, done = trainer.parallel.is_main, trainer.progress.batch
        self.bar = progress_bar(num_batches, name, "batch", shown, done, lines=False)

    def after_step(self, trainer):
        self.seconds_trained = trainer.progress.seconds
        self.bar.update(trainer.progress.batch - self.bar.n)
        if not trainer.last_result.applied:
            self.logger.info(
                f"step skipped: gradients of {trainer.last_result.first_bad} are not finite, loss scale is now "
                f"{trainer.precision.loss_scale:g} ({trainer.progress.skipped_steps} skipped so far)"
            )
        if trainer.reports() or (self.bar.disable and time.monotonic() - self.last_line > SILENT_SECONDS):
            self.logger.info(step_line(trainer, trainer.epoch_step))
            self.last_line = time.monotonic()
            self.bar.set_postfix_str(f"loss {trainer.mean.loss:.4f}, top1 {trainer.mean.top1:.4f}")

    def after_epoch(self, trainer):
        self.bar.close()
        epoch, epochs = trainer.progress.epoch, trainer.config.TRAIN.NUM_EPOCHS
        self.logger.info(
            f"----- Epoch[{epoch:03d}/{epochs:03d}], Train Loss: {trainer.mean.loss:.4f}, "
            f"Train Acc: {trainer.mean.top1:.4f}, time: {self.seconds_trained - self.seconds_before:.2f}"
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
