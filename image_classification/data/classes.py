"""How many classes the data have, and how many outputs the model gets."""

import dataclasses

import numpy as np

from ..runtime import UserError, get_logger

MOST_NAMED = 5


def settle_classes(config, dataset):
    """Return the configuration with the MODEL.NUM_CLASSES of the data, where nobody has set another for these data.

    Args:
        dataset: the training set; in an evaluation the evaluation set.

    Raises:
        UserError: a number that was set is not that of the data, or there is nothing to tell apart.
    """
    model, found = config.MODEL, dataset.num_classes
    where = f"{config.DATA.DATASET} at {config.DATA.DATA_PATH}"
    if found == 1:
        raise UserError(f"DATA.DATA_PATH: {where} has one class, {dataset.class_names[0]}: nothing to tell apart")
    if found != model.NUM_CLASSES:
        if model.CLASSES_GIVEN:
            raise UserError(f"MODEL.NUM_CLASSES: {model.NUM_CLASSES}, but {where} has {found} classes: "
                            f"{_some(dataset.class_names)}")  # fmt: skip
        get_logger().info(
            f"data: {found} classes ({_some(dataset.class_names)}), so the model has {found} outputs instead of "
            f"{model.NUM_CLASSES}"
        )
    return dataclasses.replace(config, MODEL=dataclasses.replace(model, NUM_CLASSES=found, CLASSES_GIVEN=True))


def describe_classes(dataset):
    """Return the classes of a data set as words for the log: how many, and how many of them have images."""
    if dataset.labels is None:
        return f"{dataset.num_classes} classes"
    present = len(np.unique(dataset.labels))
    return f"{present} classes" if present == dataset.num_classes else f"{present} of {dataset.num_classes} classes"


def _some(names):
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(str, names[:MOST_NAMED])) + more
