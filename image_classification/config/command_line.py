"""The command line of every entry point: PaddleViT's single-dash flags, Apex's spellings, and -opts for every key."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..runtime import Parser, UserError
from .catalogue import family_of, find_yaml, model_folders, module_of, name_of, shared, signature_of
from .dialect import family_of_file, flattened, is_foreign, nested, translate
from .meant import MEANT
from .merge import Builder, Layer, build_config, read_yaml, split_smoke
from .schema import Config
from .switches import check_switches, with_one_source_of_weights
from .unread import check_read, check_read_without_run
from .values import shown
from .yaml_text import load_yaml

DEEPEST_KEY = 8  # dots: sections of sections; a dialect's options have two
# flag -> (key it sets, what the help text says in place of the key's own)
FLAGS = {
    "Model and data": {
        "dataset": ("DATA.DATASET", ""),
        "data_path": ("DATA.DATA_PATH", ""),
        "image_size": ("DATA.IMAGE_SIZE", ""),
        "num_classes": ("MODEL.NUM_CLASSES", ""),
        "batch_size": ("DATA.BATCH_SIZE", ""),
        "batch_size_eval": ("DATA.BATCH_SIZE_EVAL", ""),
        "num_workers": ("DATA.NUM_WORKERS", ""),
        "pretrained": ("MODEL.PRETRAINED", ""),
        "teacher_model_path": ("MODEL.TEACHER", ""),
    },
    "Training": {
        "num_epochs": ("TRAIN.NUM_EPOCHS", ""),
        "lr": ("TRAIN.BASE_LR", ""),
        "accum_iter": ("TRAIN.ACCUM_ITER", ""),
        "resume": ("MODEL.RESUME", ""),
        "last_epoch": ("TRAIN.LAST_EPOCH", ""),
        "seed": ("SEED", ""),
        "prof": ("TRAIN.PROFILE_STEP", ""),
        "output": ("OUTPUT", ""),
    },
    "Precision": {
        "amp_mode": ("AMP.MODE", ""),
        "amp_dtype": ("AMP.DTYPE", ""),
        "opt-level": ("AMP.MODE", "Apex's name of -amp_mode"),
        "keep-batchnorm-fp32": ("AMP.keep_batchnorm_fp32", "Apex: O2, O3: batch norms stay float32 (True or False)"),
        "loss-scale": ("AMP.loss_scale", "Apex: a number, or 'dynamic'"),
    },
    "Machine": {
        "device": ("DEVICE", ""),
        "ngpus": ("NGPUS", ""),
        "launcher": ("PARALLEL.LAUNCHER", ""),
        "rank": ("PARALLEL.RANK", ""),
        "world_size": ("PARALLEL.WORLD_SIZE", ""),
        "local_rank": ("PARALLEL.LOCAL_RANK", ""),
        "host": ("PARALLEL.HOST", ""),
        "port": ("PARALLEL.PORT", ""),
    },
}

SWITCHES = {
    "amp": ("AMP", "train and evaluate in mixed precision: mode auto unless the YAML or -amp_mode names another"),
    "eval": ("EVAL", "evaluate only"),
    "sync_bn": ("PARALLEL.SYNC_BN", "batch norms use the statistics of all data-parallel processes"),
    "deterministic": ("DETERMINISTIC", "two runs give the same bits"),
    "dry_run": ("DRY_RUN", "resolve the configuration, build everything, run one batch, print what would happen"),
}

# Apex's spellings of its ImageNet example.
ALIASES = {
    "a": "arch",
    "b": "batch_size",
    "j": "num_workers",
    "workers": "num_workers",
    "epochs": "num_epochs",
    "e": "eval",
    "evaluate": "eval",
}

EPILOG = """\
every key of the configuration can be set:  -opts TRAIN.BASE_LR=1e-3 TRAIN.OPTIMIZER.NAME=Momentum
precedence: defaults < BASE files of the YAML < YAML < its SMOKE section (with RUNTIME.SMOKE=True) < flags < -opts;
of one given twice the last holds

Apex's spellings work, too: -b, -j or --workers, --epochs, -e or --evaluate, and the data folder as the last word

examples, from a model's folder:
  python main_single_gpu.py -cfg=./configs/vit_tiny_digits.yaml -amp
  python main_single_gpu.py -cfg=./configs/vit_base_patch16_224.yaml -dataset=imagenet2012 \\
      -batch_size=64 -data_path=/dataset/imagenet -amp
  python main_single_gpu.py -cfg=./configs/vit_tiny_digits.yaml -eval -pretrained=output/.../best.pdparams -amp
"""


def load_config(argv: Sequence[str], build_model: Builder | None = None) -> Config:
    """Return the frozen :class:`Config` that a command line asks for.

    Args:
        argv: the words after the program's name.
        build_model: the model folder's builder; its signature is the schema of the MODEL section.

    Raises:
        UserError: unknown flag or key, missing file, wrong type, value out of range.
        SystemExit: after ``-h``.
    """
    arguments = make_parser().parse_args(argv)
    if arguments.cfg is None:
        raise UserError("-cfg: a model, a recipe or a YAML file is needed, for example -cfg=vit_tiny_digits")
    path = find_yaml(arguments.cfg)
    files, smoke = split_smoke(read_yaml(path))
    notes: list[str] = []
    if is_foreign(files):
        files, *notes = translate(files, build_model)
    else:
        _check_family(path, name_of(files), build_model)
    words = _layers(arguments)
    twice = _given_twice(words)
    if arguments.amp and build_config(files, build_model).AMP.MODE == "fp32":
        words.insert(0, ("command line -amp", {"AMP": {"MODE": "auto"}}))
    config = build_config([*files, *words], build_model)
    if config.RUNTIME.SMOKE and smoke:
        files += smoke
        config = build_config([*files, *words], build_model)
    elif config.RUNTIME.SMOKE and not build_config(files, build_model).RUNTIME.SMOKE:
        # the effective configuration of a smoke run has the key, and the small values already
        raise UserError(f"RUNTIME.SMOKE: {path} has no SMOKE section, so there is no small version of it")
    of_command_line = build_config(words, build_model)
    check_switches(config, of_command_line, arguments.amp)
    check_read(config, () if notes else files, words)
    config = with_one_source_of_weights(config, of_command_line)
    config = dataclasses.replace(_with_classes(config, files, words), NOTES=(*notes, *twice))
    return _resolve(config, words, [word.partition("=")[0] for word in arguments.opts])


def _layers(arguments: Any) -> list[Layer]:
    """Return what a command line sets, but for what -amp means beside a file."""
    layers: list[Layer] = []
    if arguments.data is not None:
        layers.append(("command line", nested({"DATA.DATA_PATH": arguments.data})))
    for group in FLAGS.values():
        for flag, (key, _) in group.items():
            for value in getattr(arguments, flag.replace("-", "_")):
                layers.append((f"command line -{flag}", nested({key: value})))
    for flag, (key, _) in SWITCHES.items():
        if flag != "amp" and getattr(arguments, flag):
            layers.append((f"command line -{flag}", nested({key: True})))
    for word in arguments.opts:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"-opts: expected KEY=VALUE, found {word!r}")
        if key.count(".") > DEEPEST_KEY:
            raise UserError(f"-opts: {key[:40]!r}...: no key has {key.count('.') + 1} parts")
        # no comment follows on a command line
        is_text = "#" in value and value.lstrip()[:1] not in ("'", '"', "[", "{")
        given = value if is_text else load_yaml(value, f"-opts: {word[:200]!r}")
        layers.append(("command line -opts", nested({key: given})))
    return layers


def _given_twice(words: Iterable[Layer]) -> list[str]:
    """Return a line for each key of the command line that has two values: the last one holds, as in argparse."""
    found: dict[str, list[tuple[str, str]]] = {}
    for where, mapping in words:
        for key, value in flattened(mapping):
            found.setdefault(key, []).append((str(value)[:80], where.removeprefix("command line ")))
    return [
        f"{key} is given twice: {given[-1][0]} of {given[-1][1]} holds, {given[-2][0]} of {given[-2][1]} does not"
        for key, given in found.items()
        if len({value for value, _ in given}) > 1
    ]


def _check_family(path: Path, name: str | None, build_model: Builder | None) -> None:
    """Refuse another family's YAML by saying whose it is: its keys would be unknown, or mean something else."""
    family = family_of(name)
    own = next((own for own in model_folders() if module_of(own) == getattr(build_model, "__module__", None)), family)
    if family is not None and own != family:
        raise UserError(f"-cfg: {path}: {name} belongs to {family}: its program is in image_classification/{family}")


def preview_config(argv: Sequence[str], family: str | None = None) -> Config:
    """Return the :class:`Config` of a command line, by the signature of a model that is not imported, nor Paddle.

    Args:
        family: the model folder whose program runs; None where it runs every family.

    Raises:
        UserError, SystemExit: as :func:`load_config`.
    """
    if family is None:
        cfg = make_parser().parse_args(argv).cfg
        family = family_of_file(find_yaml(cfg)) if cfg else None
    return load_config(argv, signature_of(family) if family else None)


def check_model(cfg: str, options: Sequence[str] = ()) -> Config:
    """Return the :class:`Config` of a model that a tool was given with weights, before Paddle is imported.

    Raises:
        UserError: there is no such model, or a key of it is wrong, or of a run, which the tool does not make.
    """
    words = ["-opts", *options] if options else []
    family, given = family_of_file(find_yaml(cfg)), _layers(make_parser().parse_args(words))
    build_config(given, signature_of(family))  # first: a key that there is not gets the nearest one
    check_read_without_run(given)  # before a training's advice about such keys
    return preview_config([f"-cfg={cfg}", "-eval", *words], family)


def _with_classes(config: Config, files: Iterable[Layer], words: Iterable[Layer]) -> Config:
    """Return the configuration with what of NUM_CLASSES and CLASS_NAMES is set where the data are named, or later.

    The command line is one place. Names count the classes where no number stands beside them or later.
    """
    places = [*([mapping] for _, mapping in files), [mapping for _, mapping in words]]

    def last(section: str, *keys: str) -> int:
        found = [index for index, place in enumerate(places)
                 if any(key in mapping.get(section, {}) for mapping in place for key in keys)]  # fmt: skip
        return found[-1] if found else -1

    data, number, names = max(0, last("DATA", "DATASET", "DATA_PATH")), last("MODEL", "NUM_CLASSES"), -1
    model = config.MODEL
    if model.CLASS_NAMES:
        names = last("MODEL", "CLASS_NAMES")
        if number < names >= data:
            model = dataclasses.replace(model, NUM_CLASSES=len(model.CLASS_NAMES))
        elif names < data and not (config.EVAL or model.RESUME):  # of other data; a trained model keeps its own
            model = dataclasses.replace(model, CLASS_NAMES=())
    return dataclasses.replace(config, MODEL=dataclasses.replace(model, CLASSES_GIVEN=max(number, names) >= data))


def _resolve(config: Config, words: Iterable[Layer], given: Iterable[str]) -> Config:
    """Fill in what depends on other keys, once, so that no later code has to know the rule."""
    said = {key for _, mapping in words for key, _ in flattened(mapping)}
    is_said = config.EVAL and "DATA.BATCH_SIZE" in said and "DATA.BATCH_SIZE_EVAL" not in said
    of_data = [key.removeprefix("DATA.") for key in given if key.startswith("DATA.")]
    kept = dict.fromkeys([*config.DATA.PREPROCESSING_KEPT, *of_data])
    if unknown := [name for name in kept if not hasattr(config.DATA, name)]:
        raise UserError(f"DATA.PREPROCESSING_KEPT: {shown(unknown[0])} is no key of DATA")
    data = dataclasses.replace(
        config.DATA,
        BATCH_SIZE_EVAL=(not is_said and config.DATA.BATCH_SIZE_EVAL) or config.DATA.BATCH_SIZE,
        PREPROCESSING_KEPT=tuple(kept),
    )
    for key in ("IMAGENET_MEAN", "IMAGENET_STD"):
        if len(getattr(data, key)) != data.IMAGE_CHANNELS:
            raise UserError(
                f"DATA.{key}: has {len(getattr(data, key))} values for DATA.IMAGE_CHANNELS {data.IMAGE_CHANNELS}"
            )
    return dataclasses.replace(config, DATA=data)


def make_parser() -> Parser:
    """Return the parser; its help shows each flag with its default."""
    parser = _Parser(
        description="Train or evaluate an image classifier in float32 or mixed precision.",
        epilog=EPILOG, aliases=ALIASES, meant=MEANT,
    )  # fmt: skip
    parser.add_argument("-cfg", metavar="CFG", help="model, recipe, YAML file or run's folder (required)")
    parser.add_argument("-arch", metavar="NAME", help="Apex: its recipe of this model (configs/recipes), for -cfg")
    parser.add_argument("data", nargs="?", help="Apex: folder of the data set, as -data_path")
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag, (key, note) in flags.items():
            text, default = _documentation(key)
            text = f"{note or text} ({key}; default: {default})" if text else note
            text = text.replace("%", "%%")
            group.add_argument(f"-{flag}", metavar="VALUE", action="append", default=[], help=text)
    group = parser.add_argument_group("Switches")
    for flag, (_, text) in SWITCHES.items():
        group.add_argument(f"-{flag}", action="store_true", help=text)
    parser.add_argument_group("Any key").add_argument(
        "-opts", nargs="+", default=[], metavar="KEY=VALUE", help="set keys of the configuration"
    )  # fmt: skip
    return parser


class _Parser(Parser):
    """Knows what Apex's words mean, and that keys are set with -opts."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, unknown = self.parse_known_args(args, namespace)
        if arguments.data is not None and "=" in arguments.data:
            unknown.insert(0, arguments.data)
        if unknown and "=" in unknown[0] and not unknown[0].startswith("-"):
            raise UserError(f"unknown argument {unknown[0]!r}; keys are set with -opts {unknown[0]}")
        if unknown:
            self.refuse(unknown[0])
        data = arguments.data or ""
        if data.lower() in self.meant or (arguments.cfg and data.endswith(".yaml")):  # -amp O2, -cfg=my model.yaml
            self.refuse(data)
        for one, other in (("arch", "cfg"), ("data", "data_path")):
            if getattr(arguments, one) is not None and getattr(arguments, other):
                hint = "; a path with blanks needs quotes" if one == "data" else ""
                given = getattr(arguments, other)
                both = f"{getattr(arguments, one)} and -{other}={given if other == 'cfg' else given[-1]}"
                raise UserError(f"{both}: give one of them{hint}")
        if arguments.arch is not None:
            recipe = f"{arguments.arch}_apex"
            arguments.cfg = recipe if recipe in shared() else arguments.arch
        return arguments


def _documentation(key: str) -> tuple[str, object]:
    """Return help text and default of a dotted key, ("", "") for an option of a precision mode."""
    node: Any = Config()
    *parents, leaf = key.split(".")
    for part in parents:
        node = getattr(node, part)
    for field in dataclasses.fields(node):
        if field.name == leaf:
            choices = field.metadata.get("choices")
            text = field.metadata["help"] + (f": {', '.join(choices)}" if choices else "")
            default = getattr(node, leaf)
            return text, "none" if default is None else default
    return "", ""
