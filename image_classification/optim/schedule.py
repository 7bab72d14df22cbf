"""The learning rate of each step: linear warm-up, then a decay.

A step is one real update of the weights: skipped steps and micro-batches do not count. The rate is a function of the
step alone, so nothing has to be saved for a resumed run.
"""

import math

from ..runtime import UserError, get_logger

STEPWISE = ("step", "multistep", "apexstep")


def build_schedule(train_config, steps_per_epoch, global_batch_size=None):
    """Return the schedule of ``TRAIN``: a function from the number of earlier updates to the rate of the next one.

    Warm-up goes from WARMUP_START_LR at step 0 to BASE_LR after WARMUP_EPOCHS. Cosine, linear and polynomial then reach
    END_LR after NUM_EPOCHS and stay there. ``apexstep`` is the rule of Apex's ImageNet example: x0.1 at epochs 30, 60
    and 80, and a warm-up that ignores WARMUP_START_LR. LINEAR_SCALED_LR multiplies all three rates by the global batch
    over that number.

    Args:
        steps_per_epoch: updates in one epoch, accumulation included.
        global_batch_size: images behind one update: batch x accumulation x data-parallel processes.

    Raises:
        UserError: an epoch without steps.
    """
    if steps_per_epoch < 1:
        raise UserError(f"one epoch has {steps_per_epoch} steps: the data set is smaller than one batch")
    base, start, end = _scaled_rates(train_config, global_batch_size)
    total = train_config.NUM_EPOCHS * steps_per_epoch
    warmup_steps = round(train_config.WARMUP_EPOCHS * steps_per_epoch)
    if total <= warmup_steps:
        get_logger().warning(
            "TRAIN.WARMUP_EPOCHS %g: the run of %g epochs ends inside the warm-up and never reaches BASE_LR",
            train_config.WARMUP_EPOCHS,
            train_config.NUM_EPOCHS,
        )

    def warmup(step):
        return start + (base - start) * step / warmup_steps

    def apex_warmup(step):
        # Apex counts the steps of an epoch from 1 and adds 1 more, so the ramp ends slightly above BASE_LR.
        return base * (step + 2) / warmup_steps

    name = train_config.LR_SCHEDULER.NAME
    rise = apex_warmup if name == "apexstep" else warmup
    decay = _decay(name, train_config.LR_SCHEDULER, base, end, warmup_steps, total, steps_per_epoch)
    if name in STEPWISE and total > warmup_steps and decay(total - 1) == base:
        get_logger().warning(
            "TRAIN.LR_SCHEDULER.NAME %s: the run of %g epochs ends before the rate is cut for the first time",
            name,
            train_config.NUM_EPOCHS,
        )
    return lambda step: rise(step) if step < warmup_steps else decay(step)


def _scaled_rates(train_config, global_batch_size):
    rates = train_config.BASE_LR, train_config.WARMUP_START_LR, train_config.END_LR
    scale = 1.0 if train_config.LINEAR_SCALED_LR is None else global_batch_size / train_config.LINEAR_SCALED_LR
    return tuple(rate * scale for rate in rates)


def _decay(name, settings, base, end, warmup_steps, total, steps_per_epoch):
    """Return the function step -> rate that holds after the warm-up."""
    span = max(1, total - warmup_steps)

    def left(step):  # share of the decay that is still to come, 1 -> 0
        return 1.0 - min(1.0, (step - warmup_steps) / span)

    if name in ("warmupcosine", "cosine"):
        return lambda step: end + (base - end) * 0.5 * (1.0 - math.cos(math.pi * left(step)))
    if name == "linear":
        return lambda step: end + (base - end) * left(step)
    if name == "polynomial":
        return lambda step: end + (base - end) * left(step) ** settings.POWER
    if name == "step":
        return lambda step: base * settings.DECAY_RATE ** (step // (steps_per_epoch * settings.DECAY_EPOCHS))
    if name == "multistep":
        milestones = [epoch * steps_per_epoch for epoch in settings.MILESTONES]
        return lambda step: base * settings.DECAY_RATE ** sum(step >= milestone for milestone in milestones)
    if name == "apexstep":
        return lambda step: base * 0.1 ** (step // (30 * steps_per_epoch) + (step >= 80 * steps_per_epoch))
    return lambda step: base
