"""What a command line asks for that contradicts itself, or would do nothing."""

import dataclasses

from ..runtime import UserError
from .schema import BALANCED, FLOAT32_MODES, PRECISION_MODES, UNCOUNTED, WITHOUT_FOLDER, Config


def check_switches(config: Config, of_command_line: Config, amp: bool) -> None:
    """Refuse a switch that would do nothing.

    Raises:
        UserError: ``-amp`` with mode fp32, a half format for a mode that computes in float32, a folder for data that
            have none, a folder of runs beside the run's own, a teacher that nobody asks, classes that are weighted by
            another word, or twice, or of data that do not tell them, a profile of an evaluation, no epoch that is left,
            epochs done beside a checkpoint, or a comparison of float32 with itself.
    """
    path, train = of_command_line.DATA.DATA_PATH, config.TRAIN
    if config.DATA.DATASET in WITHOUT_FOLDER and path != Config().DATA.DATA_PATH:
        raise UserError(
            f"-data_path={path}: DATA.DATASET {config.DATA.DATASET} reads no folder: leave the path out, or say what "
            "is in it: -dataset=folder, imagenet2012, ... (docs/data.md)"
        )
    if of_command_line.OUTPUT and of_command_line.SAVE != Config().SAVE:
        raise UserError(f"SAVE={of_command_line.SAVE}: -output={of_command_line.OUTPUT} is the folder of this run, and "
                        "nothing goes below SAVE: leave one of them out")  # fmt: skip
    teacher = of_command_line.MODEL.TEACHER
    if teacher and train.DISTILLATION_TYPE == "none" and not config.EVAL:
        raise UserError(f"-teacher_model_path={teacher}: TRAIN.DISTILLATION_TYPE is none: set it to soft or hard, or "
                        "leave the teacher out")  # fmt: skip
    weights = train.CLASS_WEIGHTS
    if isinstance(weights, str) and weights != BALANCED:
        raise UserError(f"TRAIN.CLASS_WEIGHTS: {weights!r}: allowed are a list of numbers and {BALANCED}")
    if weights == BALANCED and config.DATA.BALANCED and not config.EVAL:
        raise UserError(f"TRAIN.CLASS_WEIGHTS: {BALANCED}: DATA.BALANCED draws each class equally often already")
    if config.DATA.DATASET in UNCOUNTED and not config.EVAL:  # listing the records takes long
        uncounted = f"{config.DATA.DATASET} has its labels in the records, where they are not counted"
        if config.DATA.BALANCED:
            raise UserError(f"DATA.BALANCED: {uncounted}; prepare it as class folders")
        if weights == BALANCED:
            raise UserError(f"TRAIN.CLASS_WEIGHTS: {BALANCED}: {uncounted}; give the weights as numbers")
    if train.LAST_EPOCH >= train.NUM_EPOCHS and not (config.EVAL or config.MODEL.RESUME):
        raise UserError(f"-last_epoch={train.LAST_EPOCH}: TRAIN.NUM_EPOCHS is {train.NUM_EPOCHS}: nothing to train")
    if config.EVAL and of_command_line.TRAIN.PROFILE_STEP is not None:
        raise UserError(f"-prof={of_command_line.TRAIN.PROFILE_STEP}: steps of a training are profiled, and -eval "
                        "makes none: leave one of them out")  # fmt: skip
    done = of_command_line.TRAIN.LAST_EPOCH
    if done and config.MODEL.RESUME and not config.EVAL:
        raise UserError(f"-last_epoch={done}: the checkpoint of -resume knows how many epochs are done: leave it out")
    mode, dtype = config.AMP.MODE, of_command_line.AMP.DTYPE
    if amp and mode == "fp32":
        raise UserError("-amp and AMP.MODE fp32 contradict each other: leave one of them out")
    plain = mode in FLOAT32_MODES and not config.AMP.OPTIONS  # a level's properties may be changed one by one
    half = ", ".join(name for name in PRECISION_MODES if name not in FLOAT32_MODES)
    # -amp leaves a mode that is named as it is
    to_half = f"{'add -amp, or' if mode == 'fp32' else 'give'} -amp_mode with one of {half}"
    if of_command_line.EVAL_FP32 and (plain or not config.EVAL):
        why = f"AMP.MODE {mode} computes in float32: {to_half}" if config.EVAL else "compares evaluations: add -eval"
        raise UserError(f"EVAL_FP32=True: {why}, or leave it out")
    if dtype and plain:
        raise UserError(f"-amp_dtype={dtype}: AMP.MODE {mode} computes in float32: {to_half}")


def refuse_run_options(config: Config, instead: str) -> None:
    """Refuse what says something of a run, to a tool that takes the options of a training and makes none.

    Raises:
        UserError: the option, and what the tool does ``instead``.
    """
    for option, is_given in {
        "-eval": config.EVAL,
        f"-resume={config.MODEL.RESUME}": config.MODEL.RESUME,
        f"-output={config.OUTPUT}": config.OUTPUT,
        "-dry_run": config.DRY_RUN,
        f"-prof={config.TRAIN.PROFILE_STEP}": config.TRAIN.PROFILE_STEP is not None,
        f"-ngpus={config.NGPUS}": config.NGPUS > 1,
    }.items():
        if is_given:
            raise UserError(f"{option}: {instead}; leave it out")


def with_one_source_of_weights(config: Config, of_command_line: Config) -> Config:
    """Return the configuration with the MODEL.PRETRAINED or MODEL.RESUME that is loaded: the command line's, else the
    file's.

    Raises:
        UserError: both are asked for in one place.
    """
    given = of_command_line.MODEL
    if given.PRETRAINED and given.RESUME:
        raise UserError(
            f"-pretrained={given.PRETRAINED} and -resume={given.RESUME}: two sources of weights; give one of them"
        )
    if given.PRETRAINED:
        return dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, RESUME=None))
    if given.RESUME and not config.EVAL:
        return config  # the weights that the training began with: it keeps their normalisation, and loads the others
    if given.RESUME:
        return dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, PRETRAINED=None))
    if config.MODEL.PRETRAINED and config.MODEL.RESUME:
        raise UserError(
            f"MODEL.PRETRAINED {config.MODEL.PRETRAINED} and MODEL.RESUME {config.MODEL.RESUME}: two sources of "
            "weights; give one of them"
        )
    return config
