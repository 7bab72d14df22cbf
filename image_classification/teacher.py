"""The teacher that MODEL.TEACHER names: read before the data, and built once these have decided about the classes."""

import dataclasses
import os

from .config.schema import Amp
from .distillation import Teacher
from .parallel.agreement import check_same_file
from .runtime import UserError
from .saved_config import check_classes
from .weights import locate, published
from .zoo import read_model


def read_teacher(config):
    """Return what :func:`zoo.read_model` does for ``MODEL.TEACHER``, None without TRAIN.DISTILLATION_TYPE.

    It takes images of the student's size; positions are resampled to it.

    Raises:
        UserError: nobody says what it is, it has other images, or its weights do not fit.
    """
    kind, weights = config.TRAIN.DISTILLATION_TYPE, config.MODEL.TEACHER
    if kind == "none":
        return None
    if weights is None:
        raise UserError(f"TRAIN.DISTILLATION_TYPE {kind}: needs MODEL.TEACHER, the weights")
    sizes = {"DATA.IMAGE_SIZE": config.DATA.IMAGE_SIZE, "DEVICE": config.DEVICE,
             "MODEL.NUM_CLASSES": config.MODEL.NUM_CLASSES}  # fmt: skip
    hint = ""
    try:
        locate(weights)
        name, hint = _model_of(config.MODEL)
        found = read_model(name, weights, [f"{key}={value}" for key, value in sizes.items()])
        own, other = config.DATA.IMAGE_CHANNELS, found.config.DATA.IMAGE_CHANNELS
        if other != own:
            raise UserError(f"{found.path} has images of DATA.IMAGE_CHANNELS {other}, this training of {own}")
        found.check(replace_head=not config.MODEL.CLASSES_GIVEN)  # else the data decide about the classes
    except UserError as error:
        raise UserError(f"MODEL.TEACHER {weights}: {error}{hint}") from None
    return found


def _model_of(model):
    """Return (the teacher's variant or YAML, what is to be added to an error where the weights' name alone says it).

    It is MODEL.TEACHER_CFG, else that of the registry or of the run's folder, else the name of the weights' file.
    """
    entry = published(model.TEACHER)
    if model.TEACHER_CFG or entry:
        return model.TEACHER_CFG or entry.variant, ""
    if os.path.isdir(model.TEACHER):
        return model.TEACHER, ""
    name = os.path.basename(model.TEACHER).removesuffix(".pdparams")
    return name, "; MODEL.TEACHER_CFG says whose weights they are"


def mode_of_teacher(config):
    """Return the AMP section of the teacher: the student's, whose KEEP_FLOAT32 names the student's layers alone."""
    others = {name: value for name, value in config.AMP.OPTIONS.items() if name != "keep_float32"}
    return Amp() if config.MODEL.TEACHER_FP32 else dataclasses.replace(config.AMP, OPTIONS=others)


def build_teacher(found, config, precision, parallel):
    """Return the :class:`Teacher` of what :func:`read_teacher` found, with as many classes as the student.

    Raises:
        UserError: its classes are others, or its file is another one on another process.
    """
    where = f"MODEL.TEACHER {config.MODEL.TEACHER}"
    try:
        model, own, loaded = found.load(config.MODEL.NUM_CLASSES)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    check_classes(loaded.config, config, where)
    check_same_file(parallel, "MODEL.TEACHER", loaded.path)
    normalisations = ((data.IMAGENET_MEAN, data.IMAGENET_STD) for data in (config.DATA, own.DATA))
    return Teacher(precision.convert_model(model), precision, *normalisations)
