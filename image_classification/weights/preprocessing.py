"""The preprocessing that belongs to a set of weights, as keys of the DATA section."""

from .registry import read_registry

KEYS = {
    "crop_pct": "CROP_PCT",
    "interpolation": "INTERPOLATION",
    "library": "RESIZE_LIBRARY",
    "mean": "IMAGENET_MEAN",
    "std": "IMAGENET_STD",
}


def preprocessing_of(source):
    """Return {DATA key: value} for the weights of a registry id, None for any other source.

    With it an evaluation gives the figure that the publisher printed, whatever the YAML says. The image size is left to
    the YAML: it is part of the architecture.
    """
    entry = read_registry().get(source)
    if entry is None:
        return None
    values = {key: entry.preprocessing[name] for name, key in KEYS.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
