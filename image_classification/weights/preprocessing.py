"""The preprocessing that belongs to a set of weights, as keys of the DATA section."""

import dataclasses

from ..runtime import get_logger
from .registry import published

KEYS = {
    "crop_pct": "CROP_PCT",
    "interpolation": "INTERPOLATION",
    "library": "RESIZE_LIBRARY",
    "exif": "EXIF_ORIENTATION",
    "keep_aspect": "KEEP_ASPECT",
    "mean": "IMAGENET_MEAN",
    "std": "IMAGENET_STD",
}
NORMALISATION = ("IMAGENET_MEAN", "IMAGENET_STD")


def preprocessing_of(source):
    """Return {DATA key: value} for the weights of a registry id, None for any other source.

    The image size is left to the YAML: it is part of the architecture.
    """
    entry = published(source)
    if entry is None:
        return None
    described = {"exif": False, "keep_aspect": True} | entry.preprocessing  # said only where they differ
    values = {key: described[name] for name, key in KEYS.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def with_preprocessing(config):
    """Return the configuration with the DATA keys that belong to the weights of MODEL.PRETRAINED, and log each change.

    An evaluation takes all of them, so that it gives the figure that the publisher printed, and says where the image
    size is not that figure's; a training run takes the normalisation only. The keys in DATA.PREPROCESSING_KEPT stay as
    they are. DATA.PREPROCESSING "config", or weights that are not in the registry, leave all as it is.
    """
    values = preprocessing_of(config.MODEL.PRETRAINED)
    if values is None:
        return config
    if not config.EVAL:
        values = {key: values[key] for key in NORMALISATION}
    changes = {key: value for key, value in values.items() if getattr(config.DATA, key) != value}
    own = set(changes) if config.DATA.PREPROCESSING == "config" else set(config.DATA.PREPROCESSING_KEPT)
    for key, value in changes.items():
        current = getattr(config.DATA, key)
        kept, instead = (current, value) if key in own else (value, current)
        owner = "as configured" if key in own else f"belongs to {config.MODEL.PRETRAINED}"
        get_logger().info("preprocessing: DATA.%s %s %s, instead of %s", key, kept, owner, instead)
    size = published(config.MODEL.PRETRAINED).preprocessing["image_size"]
    if config.EVAL and size != config.DATA.IMAGE_SIZE:
        text = "preprocessing: DATA.IMAGE_SIZE %s as configured, instead of %s"
        get_logger().info(text, config.DATA.IMAGE_SIZE, size)
    taken = {key: value for key, value in changes.items() if key not in own}
    return dataclasses.replace(config, DATA=dataclasses.replace(config.DATA, **taken))
