"""One batch instead of a run: what would happen, without writing anything."""

import time

import paddle

from .config import invocation_yaml, to_yaml
from .evaluation import NO_IMAGE
from .progress import RunningMean
from .report import describe
from .runtime import UserError, get_logger, peak_memory_bytes


def dry_run(parts, trainer):
    """Run one training step (one evaluation batch without a trainer), print what a run would do, write nothing."""
    config, logger = parts.config, get_logger()
    logger.info("dry run: this is the effective configuration\n" + to_yaml(config).rstrip())
    logger.info("and this belongs to this invocation alone\n" + invocation_yaml(config).rstrip())
    describe(parts)
    start = time.perf_counter()
    if trainer is None:
        batch = next(iter(parts.eval_loader), None)  # one of many processes may have no image
        if not any(parts.parallel.gather(batch is not None)):
            raise UserError(NO_IMAGE)
        if batch is not None:
            images, labels = batch
            parts.model.eval()
            with paddle.no_grad(), parts.precision.forward_context():
                logits = parts.parallel.predict(parts.model, paddle.to_tensor(images))
            logger.info(f"one batch of {len(labels)} images: logits {logits.shape} {logits.dtype}")
    else:
        parts.train_loader.set_epoch(0)
        parts.model.train()
        steps = (config.TRAIN.NUM_EPOCHS - trainer.progress.epoch) * trainer.steps_per_epoch - trainer.epoch_step
        window = min(config.TRAIN.ACCUM_ITER, len(parts.train_loader))
        trainer.mean = RunningMean()  # of this step alone, whatever is resumed
        trainer.train_step(parts.train_loader.iterate(0), window)
        trainer.mean.exchange(parts.parallel)
        result = trainer.last_result
        what = "applied" if result.applied else f"skipped ({result.first_bad} is not finite)"
        logger.info(
            f"one step of {window} x {config.DATA.BATCH_SIZE} images: loss {trainer.mean.loss:.4f}, "
            f"{what}, loss scale {result.loss_scale:g}"
        )
        logger.info(
            f"a run would make {steps} steps, {trainer.steps_per_epoch} an epoch, and write to "
            f"{config.OUTPUT or config.SAVE}"
        )
    logger.info(
        f"{time.perf_counter() - start:.2f} s, peak memory {peak_memory_bytes(parts.device) / 2**20:.0f} MiB; "
        "dry run: nothing was written"
    )
