"""From a configuration to loaders."""

import functools
import os

from ..runtime import UserError, cards_variable, cores, get_logger
from .augmentation import image_steps, pixel_steps
from .classes import describe_classes, given_classes, place_of
from .dali import DaliLoader, check_dali
from .decode import LARGEST
from .loader import Loader
from .mixing import batch_rng, build_batch_transform
from .normalize import Normalize
from .sampler import balanced_shares, eval_order, train_order
from .samples import SampleMaker
from .sources import build_dataset
from .transforms import EvalTransform, TrainTransform

MAX_AUTO_WORKERS = 8


def build_train_loader(config, rank=0, world_size=1, dataset=None):
    """Return the training loader of one of ``world_size`` data-parallel ranks.

    All ranks get the same number of full batches; the rest of the shuffled epoch is dropped. A ``dataset`` that was
    built already is not built again.

    With Mixup or CutMix on, labels are soft: float32 [B, num_classes].

    Raises:
        UserError: see :func:`build_dataset`; also a data set smaller than one global batch.
    """
    data = config.DATA
    dataset = build_dataset(config, "train") if dataset is None else dataset
    if len(dataset) < data.BATCH_SIZE * world_size:
        raise UserError(
            f"DATA.BATCH_SIZE: {data.BATCH_SIZE} images x {world_size} processes is more than the {len(dataset)}"
            f" training images of {data.DATASET}; lower -batch_size"
        )
    transform = build_train_transform(config)
    order = functools.partial(
        train_order,
        len(dataset),
        config.SEED,
        batch_size=data.BATCH_SIZE,
        rank=rank,
        world_size=world_size,
        repeats=config.TRAIN.REPEATED_AUG,
        shares=balanced_shares(dataset.labels) if data.BALANCED else None,
    )
    loader = _loader(config, dataset, transform, order, data.BATCH_SIZE, world_size, training=True)
    mix = build_batch_transform(config)
    if mix is not None:
        loader.mix = lambda images, labels, epoch, batch: mix(
            images, labels, batch_rng(config.SEED, epoch, batch, rank)
        )
    return loader


def build_eval_loader(config, rank=0, world_size=1, dataset=None):
    """Return the evaluation loader of one rank: over all ranks, every image exactly once.

    The shares of the ranks may differ by one image; a rank may have none.

    Raises:
        UserError: see :func:`build_dataset`; also a data set without images.
    """
    data = config.DATA
    dataset = build_dataset(config, "val") if dataset is None else dataset
    if not len(dataset):
        raise UserError(f"DATA.DATA_PATH: {place_of(data)} has no image for the evaluation")
    transform = build_eval_transform(data)
    fixed = eval_order(len(dataset), rank, world_size)
    batch_size = data.BATCH_SIZE_EVAL or data.BATCH_SIZE
    return _loader(config, dataset, transform, lambda epoch: fixed, batch_size, world_size, training=False)


def build_train_transform(config):
    """Return the random crop, the flip and the augmentation of a training as the DATA and TRAIN sections say."""
    data = config.DATA
    return TrainTransform(
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
        upright=data.EXIF_ORIENTATION,
        image_steps=image_steps(config),
        pixel_steps=pixel_steps(config),
    )


def build_eval_transform(data):
    """Return the resize and crop of an evaluation as the DATA section says.

    Raises:
        UserError: each image, however small, would be scaled to more pixels than one may have.
    """
    side = data.IMAGE_SIZE / data.CROP_PCT
    if side > LARGEST**0.5:
        raise UserError(
            f"DATA.CROP_PCT {data.CROP_PCT:g}: a square of {data.IMAGE_SIZE} pixels would be cut out of "
            f"{side:g} x {side:g} pixels, at most {LARGEST} are allowed"
        )
    return EvalTransform(
        data.IMAGE_SIZE,
        data.IMAGE_CHANNELS,
        data.CROP_PCT,
        data.INTERPOLATION,
        data.RESIZE_LIBRARY,
        keep_aspect=data.KEEP_ASPECT,
        upright=data.EXIF_ORIENTATION,
    )


def check_loader(config):
    """Raise UserError where no loader can be as the DATA section says, whatever the data set is."""
    data = config.DATA
    for key in ("IMAGENET_MEAN", "IMAGENET_STD"):
        if len(getattr(data, key)) != data.IMAGE_CHANNELS:
            raise UserError(
                f"DATA.{key}: has {len(getattr(data, key))} values, DATA.IMAGE_CHANNELS is {data.IMAGE_CHANNELS}"
            )
    if data.LOADER == "dali":
        check_dali(config)


def _loader(config, dataset, transform, order, batch_size, world_size, training):
    check_loader(config)
    data = config.DATA
    maker = SampleMaker(
        dataset,
        transform,
        config.MODEL.NUM_CLASSES,
        config.SEED,
        given_classes(config.MODEL),
        skip_corrupt=data.SKIP_CORRUPT,
        replace_corrupt=training,
    )
    num_workers = _num_workers(data, dataset, world_size)
    if data.LOADER == "dali":
        return _dali_loader(config, maker, order, batch_size, num_workers, training)
    _log(data, dataset, training, f"{num_workers} workers")
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


def _dali_loader(config, maker, order, batch_size, num_workers, training):
    data = config.DATA
    if maker.dataset.in_memory:
        raise UserError(f"DATA.LOADER: dali reads encoded images; {data.DATASET} is pixels in memory")
    device = int(os.environ.get(cards_variable("gpu"), "0").split(",")[0]) if data.DALI_GPU else None
    place = "CPU" if device is None else f"GPU {device}"
    _log(data, maker.dataset, training, f"DALI on {place} with {num_workers} threads")
    return DaliLoader(
        maker,
        order,
        batch_size,
        data.IMAGENET_MEAN,
        data.IMAGENET_STD,
        training,
        num_threads=max(1, num_workers),
        device=device,
    )


def _log(data, dataset, training, makers):
    split = "train" if training else "val"
    get_logger().info(f"data: {data.DATASET} {split}, {len(dataset)} images, {describe_classes(dataset)}, {makers}")


def _num_workers(data, dataset, world_size):
    if data.NUM_WORKERS is not None:
        return data.NUM_WORKERS
    if dataset.in_memory and data.IMAGE_SIZE <= 64:  # a message to a worker costs more than such an image
        return 0
    local_processes = int(os.environ.get("PADDLE_LOCAL_SIZE", world_size))
    return max(1, min(MAX_AUTO_WORKERS, cores() // max(1, local_processes)))
