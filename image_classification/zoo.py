"""The model folders, found by themselves, and models by the name of their variant."""

import importlib
import os
from pathlib import Path

from .build import make_model
from .config import build_config, load_config
from .config.merge import read_yaml
from .runtime import UserError, select_device
from .weights import load_pretrained, with_preprocessing

PACKAGE = Path(__file__).resolve().parent


def model_folders():
    """Return {folder's name: its path}, sorted: every folder of the package with an entry point."""
    return {path.parent.name: path.parent for path in sorted(PACKAGE.glob("*/main_single_gpu.py"))}


def variants():
    """Return {variant: path of its YAML} over all families."""
    folders = model_folders().values()
    return {path.stem: path for folder in folders for path in sorted((folder / "configs").glob("*.yaml"))}


def find_config(name):
    """Return (path of the YAML, its family's `build_model`) for a variant's name or a YAML file anywhere.

    Raises:
        UserError: there is no such variant or file, or the YAML's MODEL.NAME is none of the zoo.
    """
    known = variants()
    path = Path(known.get(name, name))
    if not os.path.isfile(path):  # pathlib's raises where a name is too long
        raise UserError(f"-cfg: {name} is no file and no variant; tools/list_models.py lists the variants")
    home = path if path.resolve() in known.values() else known.get(_name_of(path))
    if home is None:
        raise UserError(f"-cfg: {path}: its MODEL.NAME is no variant of the zoo; tools/list_models.py lists them")
    family = Path(home).resolve().parents[1].name
    module = importlib.import_module(f"image_classification.{family}.{family.lower()}")
    return path, module.build_model


def _name_of(path):
    """Return MODEL.NAME of a YAML whose family is not known yet: the last one of its layers that gives one."""
    names = [layer["MODEL"].get("NAME") for _, layer in read_yaml(path) if isinstance(layer.get("MODEL"), dict)]
    return next((name for name in reversed(names) if name), build_config([]).MODEL.NAME)


def load_model(name, pretrained=None, options=()):
    """Return (model in evaluation mode, its configuration with the weights' preprocessing).

    Args:
        name: a variant or a YAML file, such as a run folder's `config.yaml`.
        pretrained: weights as `-pretrained` takes them; None keeps the fresh ones.
        options: KEY=VALUE words, as `-opts` takes them.
    """
    path, build_model = find_config(name)
    words = [f"-cfg={path}", "-eval"]
    words += [f"-pretrained={pretrained}"] if pretrained else []
    words += ["-opts", *options] if options else []
    config = with_preprocessing(load_config(words, build_model))
    select_device(config.DEVICE)
    model = make_model(config, build_model)
    if pretrained:
        load_pretrained(model, pretrained)
    model.eval()
    return model, config
