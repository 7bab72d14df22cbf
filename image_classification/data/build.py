"""From a configuration to loaders."""

import functools
import os

from ..runtime import UserError, get_logger
from .jitter import ColorJitter, RandomErasing
from .loader import Loader
from .mixing import batch_rng, build_batch_transform
from .normalize import Normalize
from .policies import AutoAugment, RandAugment, ThreeAugment, TrivialAugment
from .sampler import eval_order, train_order
from .samples import SampleMaker
from .sources import build_dataset
from .transforms import EvalTransform, TrainTransform

MAX_AUTO_WORKERS = 8


def build_train_loader(config, rank=0, world_size=1):
    """Return the training loader of one of ``world_size`` data-parallel ranks.

    All ranks get the same number of full batches; the rest of the shuffled epoch is dropped.

    With Mixup or CutMix on, labels are soft: float32 [B, num_classes].

    Raises:
        UserError: see :func:`build_dataset`; also a data set smaller than one global batch.
    """
    data = config.DATA
    dataset = build_dataset(config, "train")
    if len(dataset) < data.BATCH_SIZE * world_size:
        raise UserError(
            f"DATA.BATCH_SIZE: {data.BATCH_SIZE} images x {world_size} processes is more than the {len(dataset)}"
            f" training images of {data.DATASET}"
        )
    transform = TrainTransform(
        data.IMAGE_SIZE,
        data.IMAGE_CHANNELS,
        crop=data.TRAIN_CROP,
        crop_scale=data.CROP_SCALE,
        crop_ratio=data.CROP_RATIO,
        crop_padding=data.CROP_PADDING,
        hflip=data.HFLIP,
        interpolation=data.INTERPOLATION,
        library=data.RESIZE_LIBRARY,
        scaled_decode=data.SCALED_DECODE,
        image_steps=_image_steps(config),
        pixel_steps=_pixel_steps(config),
    )
    order = functools.partial(
        train_order,
        len(dataset),
        config.SEED,
        batch_size=data.BATCH_SIZE,
        rank=rank,
        world_size=world_size,
        repeats=config.TRAIN.REPEATED_AUG,
    )
    loader = _loader(config, dataset, transform, order, data.BATCH_SIZE, world_size, training=True)
    mix = build_batch_transform(config)
    if mix is not None:
        loader.mix = lambda images, labels, epoch, batch: mix(
            images, labels, batch_rng(config.SEED, epoch, batch, rank)
        )
    return loader


def _image_steps(config):
    train = config.TRAIN
    policies = {
        "AUTO_AUGMENT": lambda: AutoAugment(train.AUTO_AUGMENT_POLICY),
        "RAND_AUGMENT": lambda: RandAugment(train.RAND_AUGMENT_LAYERS, train.RAND_AUGMENT_MAGNITUDE),
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


def _jitter_strengths(values):
    """Return (brightness, contrast, saturation, hue); one number stands for the first three, as in timm."""
    strengths = tuple(values) * 3 if len(values) == 1 else tuple(values)
    if len(strengths) not in (3, 4) or min(strengths) < 0 or (len(strengths) == 4 and strengths[3] > 0.5):
        raise UserError(f"TRAIN.COLOR_JITTER: {list(values)} is not 1, 3 or 4 numbers >= 0, the fourth <= 0.5")
    return strengths


def _pixel_steps(config):
    train, data = config.TRAIN, config.DATA
    if not train.RANDOM_ERASE_PROB:
        return []
    return [RandomErasing(train.RANDOM_ERASE_PROB, train.RANDOM_ERASE_MODE, data.IMAGENET_MEAN, data.IMAGENET_STD)]


def build_eval_loader(config, rank=0, world_size=1):
    """Return the evaluation loader of one rank: over all ranks, every image exactly once.

    The shares of the ranks may differ by one image; a rank may have none.

    Raises:
        UserError: see :func:`build_dataset`.
    """
    data = config.DATA
    dataset = build_dataset(config, "val")
    transform = EvalTransform(
        data.IMAGE_SIZE, data.IMAGE_CHANNELS, data.CROP_PCT, data.INTERPOLATION, data.RESIZE_LIBRARY
    )
    fixed = eval_order(len(dataset), rank, world_size)
    batch_size = data.BATCH_SIZE_EVAL or data.BATCH_SIZE
    return _loader(config, dataset, transform, lambda epoch: fixed, batch_size, world_size, training=False)


def _loader(config, dataset, transform, order, batch_size, world_size, training):
    data = config.DATA
    for key in ("IMAGENET_MEAN", "IMAGENET_STD"):
        if len(getattr(data, key)) != data.IMAGE_CHANNELS:
            raise UserError(
                f"DATA.{key}: has {len(getattr(data, key))} values, DATA.IMAGE_CHANNELS is {data.IMAGE_CHANNELS}"
            )
    maker = SampleMaker(
        dataset,
        transform,
        config.MODEL.NUM_CLASSES,
        config.SEED,
        skip_corrupt=data.SKIP_CORRUPT,
        replace_corrupt=training,
    )
    num_workers = _num_workers(data, dataset, world_size)
    get_logger().info(
        "data: %s %s, %d images, %d workers", data.DATASET, "train" if training else "val", len(dataset), num_workers
    )
    return Loader(
        maker,
        order,
        batch_size,
        Normalize(data.IMAGENET_MEAN, data.IMAGENET_STD),
        (data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE),
        num_workers=num_workers,
        prefetch=data.PREFETCH,
        timeout_seconds=data.WORKER_TIMEOUT,
    )


def _num_workers(data, dataset, world_size):
    if data.NUM_WORKERS is not None:
        return data.NUM_WORKERS
    if dataset.in_memory and data.IMAGE_SIZE <= 64:  # a message to a worker costs more than such an image
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_processes = int(os.environ.get("PADDLE_LOCAL_SIZE", world_size))
    return max(1, min(MAX_AUTO_WORKERS, cores // max(1, local_processes)))
