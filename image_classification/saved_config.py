"""What the configuration in a checkpoint says against the one that the checkpoint is read for."""

import contextlib
import itertools
import json
import operator

from .config import Config
from .config.compare import changes, flat, recipe_of, without_machine
from .config.yaml_text import load_yaml
from .data.classes import place_of
from .runtime import UserError, get_logger
from .runtime.errors import one_line
from .weights.preprocessing import KEYS, NORMALISATION

EVALUATION = ("IMAGE_SIZE", *KEYS.values())  # what the figure of an evaluation depends on besides the model
DIVISION = ("DATA.BATCH_SIZE", "TRAIN.ACCUM_ITER")  # of the images of a step
ORDER = ("SEED", "DATA.DATASET", "DATA.BALANCED", "TRAIN.REPEATED_AUG")  # with the images, the order of an epoch


def only_evaluation_is_left(batch, units):
    """Return whether an epoch of which `batch` batches are done is trained, as far as the units of a checkpoint say."""
    return "images" in units and (batch + 1) * units["images_per_batch"] > units["images"]


def check_rest_of_epoch(state, config, images, path):
    """Return when what is left to train of the running epoch of a checkpoint goes on here in the order of its begin.

    Args:
        state: a checkpoint; one of an older version says less, and what it does not say is not compared.
        images: those of the training set here.

    Raises:
        UserError: the rest of the epoch would hold images that were seen and miss others; the first key that differs.
    """
    progress, saved = state["progress"], _values(state["config"], f"-resume: {path}: config")
    units = state.get("units", {})
    if not progress["batch"] or only_evaluation_is_left(progress["batch"], units):
        return
    pairs = [(key, saved.get(key), operator.attrgetter(key)(config)) for key in ORDER]
    pairs.append((f"training images of {place_of(config.DATA)}", units.get("images"), images))
    for key, before, now in pairs:
        if before is not None and before != now:
            raise UserError(
                f"-resume: {path}: is within epoch {progress['epoch'] + 1}, and {key}: was {before}, now it is {now}: "
                "its rest would repeat images and leave others out; keep it as it was, or resume from the end of an "
                "epoch"
            )


def check_classes(text, config, where):
    """Return when weights know the classes of the data in their order, or one of the two has no names.

    Args:
        text: the configuration in the checkpoint; None: the weights have none.
        where: the flag and the file, for the error.

    Raises:
        UserError: every label, or some, would mean another class; the first that differs.
    """
    difference = differing_classes(text, config, where)
    if difference:
        way = "; with -cfg=<its run folder>/config.yaml the folders are numbered as it has them" if config.EVAL else ""
        raise UserError(f"{where}: MODEL.CLASS_NAMES: {difference}{way}")


def differing_classes(text, config, where):
    """Return how the classes of weights differ from those of the data, as text; "" where nothing says that they do."""
    saved, own = _values(text or "", f"{where}: config").get("MODEL.CLASS_NAMES"), config.MODEL.CLASS_NAMES
    if not isinstance(saved, list) or not saved or not own:
        return ""
    pairs = list(enumerate(itertools.zip_longest(map(str, saved), own)))
    different = [(index, *names) for index, names in pairs if names[0] != names[1]]
    if not different:
        return ""
    index, before, now = different[0]
    return (f"class {index} is {before or 'missing'} there and {now or 'missing'} in {place_of(config.DATA)}, "
            f"{len(different)} of {len(pairs)} differ")  # fmt: skip


def changed_recipe(state, config, units, where):
    """Return in what the recipe of a checkpoint is another one than that of the run that continues it, as text; "" in
    nothing. The names of the classes are not compared, :func:`check_classes` refuses others, nor how the images of a
    step are divided, as long as these are as many: more or fewer processes, or less memory, ask for that.

    Args:
        units: those of the run, see `progress.units`.
    """
    saved = without_machine(_values(state["config"], f"{where}: config"))
    same_total = state.get("units", {}).get("images_per_step") == units["images_per_step"]
    left_out = {"MODEL.CLASS_NAMES"} | (set(DIVISION) if same_total else set())
    return _changes(saved, recipe_of(config), lambda key: key not in left_out)


def warn_of_other_model(text, config, where, of_data=None, of_model=True):
    """Warn where weights are used in another way than they were trained: as another architecture whose parameters have
    the same shapes, or with other preprocessing.

    Args:
        text: as for :func:`check_classes`.
        of_data: keys of the DATA section that matter; None: of an evaluation all that move its figure, of a training
            the normalisation.
        of_model: whether the arguments of the model matter, too.
    """
    of_data = (EVALUATION if config.EVAL else NORMALISATION) if of_data is None else of_data
    saved = {}
    with contextlib.suppress(UserError):  # the text of another project
        saved = _values(text or "", f"{where}: config")
    if "DATA.IMAGE_SIZE" not in saved:  # it knows classes at most
        return
    text = _changes(saved, recipe_of(config),
                    lambda key: _is_used(key, of_data) and (of_model or key.startswith("DATA.")))  # fmt: skip
    if text:
        get_logger().warning(f"{where}: was trained otherwise: {text}; -cfg=<its run folder> keeps it as it was")


def _is_used(key, of_data):
    """Return whether a key is an argument of the model that a use of its weights depends on, or one of DATA's."""
    section, _, name = key.partition(".")
    if section == "DATA":
        return name in of_data
    same = "DROP" in name or name == "DEPLOY"  # of training alone; another form of the same function
    return section == "MODEL" and key not in recipe_of(Config()) and not same


def _changes(saved, own, matters):
    return one_line("; ".join(f"{key} was {before}, now it is {now}" for key, before, now in changes(saved, own)
                              if matters(key)))  # fmt: skip


def of_weights_alone(text, where):
    """Return the part of a configuration that goes with weights which leave the run, as text that YAML reads: the names
    of the classes, the arguments of the model, and what the figure of an evaluation depends on."""
    parts = {"DATA": {}, "MODEL": {}}
    for key, value in _values(text, where).items():
        if _is_used(key, EVALUATION) or key == "MODEL.CLASS_NAMES":
            section, _, name = key.partition(".")
            parts[section][name] = value
    return json.dumps(parts, ensure_ascii=False)  # YAML reads no character from two escapes, as JSON does


def _values(text, where):
    """Return {dotted key: value} of a configuration's text."""
    values = load_yaml(text, where)
    return flat(values) if isinstance(values, dict) else {}
