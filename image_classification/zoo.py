"""Models by the name of their variant."""

import importlib

from .build import make_model
from .config import family_of_file, find_yaml, load_config
from .config.catalogue import module_of
from .runtime import select_device
from .weights import load_pretrained, with_preprocessing


def find_config(name):
    """Return (path of the YAML, its family's `build_model`) for a variant's or a recipe's name, or a YAML anywhere.

    Raises:
        UserError: there is no such variant or file, or the YAML's MODEL.NAME is none of the zoo.
    """
    path = find_yaml(name)
    return path, importlib.import_module(module_of(family_of_file(path))).build_model


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
