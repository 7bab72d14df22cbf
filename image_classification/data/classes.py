"""How many classes the data have, and how many outputs the model gets."""

import dataclasses

import numpy as np

from ..config.schema import WITHOUT_FOLDER
from ..runtime import UserError, get_logger, some_of


def settle_classes(config, dataset):
    """Return the configuration with NUM_CLASSES and CLASS_NAMES of the data, where nobody has set others for them.

    Args:
        dataset: the training set; in an evaluation the evaluation set.

    Raises:
        UserError: what was set, or what the model was trained for, are not the classes of the data, or there is nothing
            to tell apart.
    """
    model, found = config.MODEL, dataset.num_classes
    names = tuple(map(str, dataset.class_names))
    names = () if names == tuple(map(str, range(found))) else names
    where = place_of(config.DATA)
    if found == 1:
        raise UserError(f"DATA.DATA_PATH: {where} has one class, {dataset.class_names[0]}: nothing to tell apart")
    if found != model.NUM_CLASSES:
        if model.CLASSES_GIVEN:
            raise wrong_number(config, dataset)
        get_logger().info(
            f"data: {found} classes ({some_of(dataset.class_names)}), so the model has {found} outputs instead of "
            f"{model.NUM_CLASSES}"
        )
    trained = config.EVAL or model.RESUME or model.CLASSES_GIVEN
    if trained and names and model.CLASS_NAMES and names != model.CLASS_NAMES:
        raise UserError(f"MODEL.CLASS_NAMES: {some_of(model.CLASS_NAMES)}, but the classes of {where} are "
                        f"{some_of(names)}")  # fmt: skip
    if trained and not names and len(model.CLASS_NAMES) not in (0, found):
        raise UserError(f"MODEL.CLASS_NAMES: {len(model.CLASS_NAMES)} names, but {where} has {found} classes")
    names = names or (model.CLASS_NAMES if trained else ())
    settled = dataclasses.replace(model, NUM_CLASSES=found, CLASS_NAMES=names, CLASSES_GIVEN=True)
    return dataclasses.replace(config, MODEL=settled)


def wrong_number(config, dataset):
    """Return the error for data whose classes are not as many as were set."""
    found = f"{dataset.num_classes} classes: {some_of(dataset.class_names)}"
    return UserError(f"{given_classes(config.MODEL)}, but {place_of(config.DATA)} has {found}")


def given_classes(model):
    """Return what says how many classes a model has, as words for an error: its names, where these are as many."""
    number = model.NUM_CLASSES
    return f"MODEL.CLASS_NAMES: {number} names" if len(model.CLASS_NAMES) == number else f"MODEL.NUM_CLASSES: {number}"


def place_of(data):
    """Return a data set as words for an error: its name, and its folder where it reads one."""
    return data.DATASET if data.DATASET in WITHOUT_FOLDER else f"{data.DATASET} at {data.DATA_PATH}"


def describe_classes(dataset):
    """Return the classes of a data set as words for the log: how many, and how many of them have images."""
    if dataset.labels is None:
        return f"{dataset.num_classes} classes"
    present = len(np.unique(dataset.labels))
    return f"{present} classes" if present == dataset.num_classes else f"{present} of {dataset.num_classes} classes"
