"""What a run writes for programs: metrics.jsonl, VisualDL's scalars, report.json."""

import math

from ..runtime import peak_memory_bytes
from .hook import Hook


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
