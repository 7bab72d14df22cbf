"""From the TRAIN section to the augmentation of single images."""

from ..runtime import UserError
from .jitter import ColorJitter, RandomErasing
from .policies import AutoAugment, RandAugment, ThreeAugment, TrivialAugment


def image_steps(config):
    """Return what happens to each training image after crop and flip: at most one policy, then colour jitter.

    Raises:
        UserError: two policies, or strengths of the jitter that make no sense.
    """
    train = config.TRAIN
    policies = {
        "AUTO_AUGMENT": lambda: AutoAugment(train.AUTO_AUGMENT_POLICY),
        "RAND_AUGMENT": lambda: RandAugment(
            train.RAND_AUGMENT_LAYERS, train.RAND_AUGMENT_MAGNITUDE, train.RAND_AUGMENT_PROB
        ),
        "TRIVIAL_AUGMENT": TrivialAugment,
        "THREE_AUGMENT": ThreeAugment,
    }
    chosen = [key for key in policies if getattr(train, key)]
    if len(chosen) > 1:
        raise UserError(f"TRAIN.{chosen[0]} and TRAIN.{chosen[1]} exclude each other")
    steps = [policies[key]() for key in chosen]
    if any(train.COLOR_JITTER):
        steps.append(ColorJitter(*_jitter_strengths(train.COLOR_JITTER)))
    return steps


def pixel_steps(config):
    """Return what happens to the pixels last: random erasing, or nothing."""
    train, data = config.TRAIN, config.DATA
    if not train.RANDOM_ERASE_PROB:
        return []
    return [RandomErasing(train.RANDOM_ERASE_PROB, train.RANDOM_ERASE_MODE, data.IMAGENET_MEAN, data.IMAGENET_STD)]


def _jitter_strengths(values):
    """Return (brightness, contrast, saturation, hue); one number stands for the first three, as in timm."""
    strengths = tuple(values) * 3 if len(values) == 1 else tuple(values)
    if len(strengths) not in (3, 4) or min(strengths) < 0 or (len(strengths) == 4 and strengths[3] > 0.5):
        raise UserError(f"TRAIN.COLOR_JITTER: {list(values)} is not 1, 3 or 4 numbers >= 0, the fourth <= 0.5")
    return strengths
