"""Keys that nobody reads because of what another key says: ``MOMENTUM`` beside ``NAME: SGD``."""

import operator
from collections.abc import Iterable

from ..runtime import UserError
from .dialect import flattened
from .merge import Layer
from .schema import SCHEDULES, Config, Model

OPTIMIZER, SCHEDULE = "TRAIN.OPTIMIZER", "TRAIN.LR_SCHEDULER"
# A key: the key that decides about it, or several of which one must be on, and the values of that one with which it is
# read; none: any that is not off.
READ_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    f"{OPTIMIZER}.EPS": (f"{OPTIMIZER}.NAME", ("AdamW", "Adam", "RMSProp", "LAMB")),
    f"{OPTIMIZER}.BETAS": (f"{OPTIMIZER}.NAME", ("AdamW", "Adam", "LAMB", "Lion")),
    f"{OPTIMIZER}.RHO": (f"{OPTIMIZER}.NAME", ("RMSProp",)),
    f"{OPTIMIZER}.MOMENTUM": (f"{OPTIMIZER}.NAME", ("Momentum", "RMSProp", "LARS")),
    f"{OPTIMIZER}.NESTEROV": (f"{OPTIMIZER}.NAME", ("Momentum",)),
    f"{OPTIMIZER}.BIAS_CORRECTION": (f"{OPTIMIZER}.NAME", ("LAMB",)),
    f"{OPTIMIZER}.TRUST_CLIP": (f"{OPTIMIZER}.NAME", ("LAMB",)),
    f"{OPTIMIZER}.TRUST_COEFFICIENT": (f"{OPTIMIZER}.NAME", ("LARS",)),
    f"{OPTIMIZER}.ALWAYS_ADAPT": (f"{OPTIMIZER}.NAME", ("LAMB", "LARS")),
    f"{SCHEDULE}.MILESTONES": (f"{SCHEDULE}.NAME", ("multistep",)),
    f"{SCHEDULE}.DECAY_EPOCHS": (f"{SCHEDULE}.NAME", ("step",)),
    f"{SCHEDULE}.DECAY_RATE": (f"{SCHEDULE}.NAME", ("step", "multistep")),
    f"{SCHEDULE}.POWER": (f"{SCHEDULE}.NAME", ("polynomial",)),
    "TRAIN.END_LR": (f"{SCHEDULE}.NAME", ("warmupcosine", "cosine", "linear", "polynomial")),
    "TRAIN.WARMUP_START_LR": (f"{SCHEDULE}.NAME", tuple(name for name in SCHEDULES if name != "apexstep")),
    "TRAIN.AUTO_AUGMENT_POLICY": ("TRAIN.AUTO_AUGMENT", ()),
    "TRAIN.RAND_AUGMENT_LAYERS": ("TRAIN.RAND_AUGMENT", ()),
    "TRAIN.RAND_AUGMENT_MAGNITUDE": ("TRAIN.RAND_AUGMENT", ()),
    "TRAIN.RAND_AUGMENT_PROB": ("TRAIN.RAND_AUGMENT", ()),
    "TRAIN.RANDOM_ERASE_MODE": ("TRAIN.RANDOM_ERASE_PROB", ()),
    "TRAIN.MODEL_EMA_DECAY": ("TRAIN.MODEL_EMA", ()),
    "TRAIN.DISTILLATION_ALPHA": ("TRAIN.DISTILLATION_TYPE", ("soft", "hard")),
    "TRAIN.DISTILLATION_TAU": ("TRAIN.DISTILLATION_TYPE", ("soft",)),
    "DATA.CROP_PADDING": ("DATA.TRAIN_CROP", ("pad",)),
    "DATA.CROP_SCALE": ("DATA.TRAIN_CROP", ("random_resized",)),
    "DATA.CROP_RATIO": ("DATA.TRAIN_CROP", ("random_resized",)),
    "DATA.SCALED_DECODE": ("DATA.RESIZE_LIBRARY", ("cv2",)),
    "DATA.DALI_GPU": ("DATA.LOADER", ("dali",)),
    "DATA.TFRECORD_FIRST_LABEL": ("DATA.DATASET", ("imagenet_tfrecord",)),
    "DATA.CALTECH_BACKGROUND": ("DATA.DATASET", ("caltech101",)),
    "DATA.SYNTHETIC_IMAGES": ("DATA.DATASET", ("synthetic",)),
    "MODEL.TEACHER_CFG": ("TRAIN.DISTILLATION_TYPE", ("soft", "hard")),
    "MODEL.TEACHER_FP32": ("TRAIN.DISTILLATION_TYPE", ("soft", "hard")),
    "PARALLEL.HOST": ("PARALLEL.WORLD_SIZE", ()),
    "PARALLEL.PORT": ("PARALLEL.WORLD_SIZE", ()),
    "TRAIN.MIXUP_PROB": ("TRAIN.MIXUP_ALPHA or TRAIN.CUTMIX_ALPHA or TRAIN.CUTMIX_MINMAX", ()),
    "TRAIN.MIXUP_SWITCH_PROB": ("TRAIN.MIXUP_ALPHA", ()),
}
# What a tool reads that is given a model and its weights and makes no run, besides the arguments of the model.
OF_WEIGHTS = (
    "MODEL.NAME", "MODEL.NUM_CLASSES", "MODEL.CLASS_NAMES", "RUNTIME.SMOKE", "DEVICE",
    *(f"DATA.{name}" for name in (
        "IMAGE_SIZE", "IMAGE_CHANNELS", "CROP_PCT", "KEEP_ASPECT", "INTERPOLATION", "RESIZE_LIBRARY",
        "EXIF_ORIENTATION", "IMAGENET_MEAN", "IMAGENET_STD", "PREPROCESSING", "PREPROCESSING_KEPT")),
)  # fmt: skip
OF_A_RUN = "DATA.PREPROCESSING_KEPT"  # in each config.yaml that a run wrote, with all other keys, and in no other file


def check_read(config: Config, of_files: Iterable[Layer], of_command_line: Iterable[Layer]) -> None:
    """Refuse keys of a command line that nothing would read, and in one section of a file those that its NAME has not.

    What a file inherits may lie idle.

    Raises:
        UserError: names the key, and what it would need.
    """
    for source, mapping in of_command_line:
        for key, _ in flattened(mapping):
            if key in READ_WITH:
                found = [operator.attrgetter(decides)(config) for decides in READ_WITH[key][0].split(" or ")]
                _check(source, key, next(filter(None, found), found[0]))
    for source, mapping in of_files:
        said = dict(flattened(mapping))
        for key in () if OF_A_RUN in said else sorted(said.keys() & READ_WITH.keys()):
            name = f"{key.rpartition('.')[0]}.NAME"
            if READ_WITH[key][0] == name and name in said:
                _check(source, key, said[name])


def check_read_without_run(of_command_line: Iterable[Layer]) -> None:
    """Refuse keys of a command line that only a run would read, to a tool that makes none.

    Raises:
        UserError: names the key, and those that are read.
    """
    for source, mapping in of_command_line:
        for key, _ in flattened(mapping):
            section, _, name = key.rpartition(".")
            if key not in OF_WEIGHTS and (section != "MODEL" or hasattr(Model, name)):
                known = f"the model's arguments, {', '.join(OF_WEIGHTS)}"
                raise UserError(f"{source}: {key}: this tool does not read it, only {known}; leave it out")


def _check(source: str, key: str, found: object) -> None:
    decides, values = READ_WITH[key]
    if str(found).lower() in map(str.lower, values) or (found and not values):
        return
    needs = f"{decides} {' or '.join(values)}" if values else decides
    raise UserError(f"{source}: {key}: nothing reads it without {needs}, which is {found}: leave it out")
