"""What a run writes for programs: metrics.jsonl, VisualDL's scalars, report.json."""

import contextlib
import math

import numpy as np

from ..data.decode import decode
from ..runtime import UserError, get_logger, peak_memory_bytes, temporary_home
from .hook import Hook


class RecordHook(Hook):
    """``metrics.jsonl`` and VisualDL's scalars of the same lines, rank 0 only; ``epoch`` is its number, from 1.

    Each step is there once, also after a resume. VisualDL shows the hyper-parameters, some images as the model sees
    them, and at the end the confusion matrix, too.
    """

    priority = 20

    def __init__(self, run):
        self.run = run
        self.writer = None
        self.skipped_steps = 0  # up to the last line

    def before_train(self, trainer):
        if trainer.resumed and trainer.resumed.run.get("metrics_bytes") is not None:
            self.run.cut_metrics(trainer.resumed.run["metrics_bytes"])  # none are there where it comes from elsewhere
        with self._goes_on():
            self._open()
            self._add_facts(trainer)

    def on_save(self, trainer, run):
        run["metrics_bytes"] = self.run.sync_metrics()

    def after_step(self, trainer):
        if not trainer.reports():
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
        self.run.sync_metrics()
        if self.writer is not None:
            with self._goes_on():
                if trainer.class_report is not None:
                    self._add_picture("eval/confusion", decode((self.run.path / "confusion.png").read_bytes(), "pil"))
                self.writer.close()

    def _write(self, kind, trainer, record):
        progress = trainer.progress
        epoch = progress.epoch + (kind == "train")  # an evaluation follows a whole epoch, which is counted then
        position = {"kind": kind, "epoch": epoch, "batch": progress.batch, "step": progress.step}
        line = position | {key: _jsonable(value) for key, value in record.items()}
        self.run.append_metrics(line)
        with self._goes_on():
            self._add_scalars(line)

    def _open(self):
        with temporary_home():
            from visualdl import LogWriter

        folder = self.run.path / "visualdl"
        for old in folder.glob("vdlrecords.*"):
            old.unlink()
        self.writer = LogWriter(logdir=str(folder), display_name=self.run.path.name)
        for line in self.run.read_metrics():
            self._add_scalars(line)

    def _add_facts(self, trainer):
        config = trainer.config
        facts = {
            "model": config.MODEL.NAME, "precision": f"{trainer.precision.mode}/{trainer.precision.dtype}",
            "optimizer": config.TRAIN.OPTIMIZER.NAME, "lr": config.TRAIN.BASE_LR, "epochs": config.TRAIN.NUM_EPOCHS,
            "weight_decay": config.TRAIN.WEIGHT_DECAY, "batch_size": config.DATA.BATCH_SIZE,
            "accum_iter": config.TRAIN.ACCUM_ITER, "image_size": config.DATA.IMAGE_SIZE, "seed": config.SEED,
        }  # fmt: skip
        self.writer.add_hparams(facts, ["eval/top1", "eval/loss", "train/loss"])
        pictures = first_pictures(trainer.train_loader, config.DATA)
        if pictures is not None:
            self._add_picture("train/images", pictures)

    def _add_picture(self, tag, pixels):
        self.writer.add_image(tag, pixels[:, :, :3], step=0)

    def _add_scalars(self, line):
        self.skipped_steps = line.get("skipped_steps", self.skipped_steps)
        for name, value in line.items() if self.writer is not None else ():
            if name not in ("kind", "epoch", "batch", "step"):
                self.writer.add_scalar(f"{line['kind']}/{name}", float(value), line["step"] + self.skipped_steps)

    @contextlib.contextmanager
    def _goes_on(self):
        try:
            yield
        except OSError as error:
            self.writer = None
            get_logger().warning(
                f"{self.run.path / 'visualdl'}: cannot be written: {error.strerror or error}; the run goes on, "
                "metrics.jsonl has the same numbers"
            )


def first_pictures(loader, data, side=4):
    """Return uint8 [height, width, 3]: a square of training images as the model sees them; None without a data set."""
    maker = getattr(loader, "maker", None)
    if maker is None:
        return None
    tiles = np.zeros((side * side, data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE), np.uint8)
    for tile, index in zip(tiles, np.linspace(0, len(maker.dataset) - 1, side * side, dtype=int), strict=True):
        with contextlib.suppress(UserError):  # of a corrupt image; the training itself says it
            maker.make(0, int(index), 0, tile, lambda *skipped: None)
    rows = tiles.reshape(side, side, *tiles.shape[1:]).transpose(0, 3, 1, 4, 2)
    picture = rows.reshape(side * data.IMAGE_SIZE, side * data.IMAGE_SIZE, data.IMAGE_CHANNELS)
    return picture if data.IMAGE_CHANNELS == 3 else np.repeat(picture[:, :, :1], 3, axis=2)


def _jsonable(value):
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


# keys of the report that a checkpoint hands on; the others say how this process runs
RESULTS = ("epochs", "steps", "skipped_steps", "loss_scale", "train_loss", "top1", "top5", "eval_images", "best_top1",
           "images_per_second", "seconds", "peak_memory_bytes")  # fmt: skip


class ReportHook(Hook):
    """``report.json`` after every epoch, so that a killed run leaves one too; a resumed one goes on with it."""

    priority = 95

    def __init__(self, run, report):
        self.run = run
        self.report = report

    def before_train(self, trainer):
        if trainer.resumed and "report" in trainer.resumed.run:
            saved = trainer.resumed.run["report"]
            self.report.update({name: saved[name] for name in RESULTS if name in saved})
            if self.run.holds(trainer.resumed.path):
                self._write()

    def on_save(self, trainer, run):
        self._update(trainer)
        run["report"] = {name: self.report[name] for name in RESULTS}

    def after_epoch(self, trainer):
        self._update(trainer)
        self._write()

    def _write(self):
        latest = self.run.path / "latest.pdparams"
        self.report["checkpoint"] = str(latest) if latest.exists() else None
        self.run.write_report(self.report)

    def _update(self, trainer):
        self.report["images_per_second"] = trainer.timer.images_per_second or self.report.get("images_per_second", 0.0)
        if trainer.progress.batch or self.report.get("epochs") == trainer.progress.epoch:
            return  # nothing new since the last whole epoch
        loss = trainer.mean.loss
        self.report.update(
            epochs=trainer.progress.epoch,
            steps=trainer.progress.step,
            skipped_steps=trainer.progress.skipped_steps,
            loss_scale=trainer.precision.loss_scale,
            train_loss=loss if math.isfinite(loss) else None,
            best_top1=trainer.progress.best_top1,
            seconds=trainer.progress.seconds,
            peak_memory_bytes=peak_memory_bytes(self.report["device"]),
        )
        if trainer.evaluation:
            evaluation = trainer.evaluation
            self.report.update(top1=evaluation["top1"], top5=evaluation["top5"], eval_images=evaluation["images"])
