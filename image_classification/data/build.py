"""From a configuration to loaders."""

import functools
import os

from ..runtime import UserError, get_logger
from .loader import Loader
from .normalize import Normalize
from .sampler import eval_order, train_order
from .samples import SampleMaker
from .sources import build_dataset
from .transforms import EvalTransform, TrainTransform

MAX_AUTO_WORKERS = 8


def build_train_loader(config, rank=0, world_size=1):
    """Return the training loader of one of ``world_size`` data-parallel ranks.

    All ranks get the same number of full batches; the rest of the shuffled epoch is dropped.

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
    )
    order = functools.partial(
        _train_order, len(dataset), config.SEED, batch_size=data.BATCH_SIZE, rank=rank, world_size=world_size
    )
    return _loader(config, dataset, transform, order, data.BATCH_SIZE, world_size, training=True)


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


def _train_order(num_images, seed, epoch, **share):
    return train_order(num_images, seed, epoch, **share)


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
