"""What the configuration in a checkpoint says against the one that the checkpoint is read for."""

import functools

from .config.yaml_text import load_yaml
from .runtime import UserError

ORDER = ("SEED", "DATA.DATASET", "DATA.BALANCED", "TRAIN.REPEATED_AUG")  # with the images, the order of an epoch


def check_rest_of_epoch(state, config, images, path):
    """Return when the running epoch of a checkpoint, if there is one, goes on here in the order in which it began.

    Args:
        state: a checkpoint; one of an older version says less, and what it does not say is not compared.
        images: those of the training set here.

    Raises:
        UserError: the rest of the epoch would hold images that were seen and miss others; the first key that differs.
    """
    progress, saved = state["progress"], _values(state["config"], f"-resume: {path}: config")
    if not progress["batch"]:
        return
    pairs = [(key, _at(saved, key), functools.reduce(getattr, key.split("."), config)) for key in ORDER]
    pairs.append((f"training images of DATA.DATA_PATH {config.DATA.DATA_PATH}", state.get("units", {}).get("images"),
                  images))  # fmt: skip
    for key, before, now in pairs:
        if before is not None and before != now:
            raise UserError(
                f"-resume: {path}: is within epoch {progress['epoch'] + 1}, and {key}: was {before}, now it is {now}: "
                "its rest would repeat images and leave others out; keep it as it was, or resume from the end of an "
                "epoch"
            )


def _values(text, where):
    values = load_yaml(text, where)
    return values if isinstance(values, dict) else {}


def _at(values, key):
    """Return what nested values have under a dotted key; None: nothing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
