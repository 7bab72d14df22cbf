"""What the tests know of the zoo without being told: model folders, their builders and every YAML of a variant."""

import contextlib
import functools
import importlib
import inspect
from pathlib import Path

import paddle
import pytest

from image_classification.config import load_config
from image_classification.runtime import UserError
from image_classification.weights import read_variants

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "image_classification"
FOLDERS = sorted(path.parent for path in PACKAGE.glob("*/main_single_gpu.py"))
CONFIGS = sorted(path for folder in FOLDERS for path in (folder / "configs").glob("*.yaml"))
FAST_PARAMETERS = 30e6  # larger models are built and run by `make test-slow`
FAST_VARIANTS = 2  # and so are all but the smallest of a family of many
GIANT_PARAMETERS = 7e8  # models that take more memory than a small machine has are built with few of their equal blocks
GIANT_DEPTH = 2
GIANT_LINE = 5


def digits_config(folder):
    """Return the YAML of a family's variant for the digits, which is small enough for every test."""
    return next(path for path in CONFIGS if path.parents[1] == folder and path.stem.endswith("_digits"))


def digits_cases():
    """Return the YAMLs of all digits-sized variants as cases of a test, slow for those beyond a family's first."""
    cases = []
    for path in (path for path in CONFIGS if path.stem.endswith("_digits")):
        marks = () if path == digits_config(path.parents[1]) else pytest.mark.slow
        cases.append(pytest.param(path, id=path.stem.removesuffix("_digits"), marks=marks))
    return cases


def builder(folder):
    """Return `build_model` of a model folder."""
    name = Path(folder).name
    return importlib.import_module(f"image_classification.{name}.{name.lower()}").build_model


def build(config_path, **changes):
    """Return the model of a YAML file, with some arguments of its builder changed."""
    build_model = builder(config_path.parents[1])
    config = load_config([f"-cfg={config_path}"], build_model)
    arguments = {
        "num_classes": config.MODEL.NUM_CLASSES,
        "image_size": config.DATA.IMAGE_SIZE,
        "in_channels": config.DATA.IMAGE_CHANNELS,
        **config.MODEL.ARGUMENTS,
        **changes,
    }
    known = inspect.signature(build_model).parameters
    return build_model(**{name: value for name, value in arguments.items() if name in known})


@functools.cache
def small_side(path):
    """Return an image side that keeps a test short: 64 pixels, or the next that a model of one size can be built for.

    A variant for smaller images keeps its own.
    """
    build_model = builder(path.parents[1])
    own = load_config([f"-cfg={path}"], build_model).DATA.IMAGE_SIZE
    if "image_size" not in inspect.signature(build_model).parameters:
        return min(64, own)
    for side in range(64, own, 2):
        with contextlib.suppress(UserError), paddle.LazyGuard():
            build(path, image_size=side)
            return side
    return own


@functools.cache
def published():
    """Return {variant: its entry in the registry of weights}, over all families."""
    return {name: entry for variants in read_variants().values() for name, entry in variants.items()}


def size_of(path):
    """Return the published number of parameters of a variant; 0 for one that is not published, such as the digits'."""
    return published().get(path.stem, {"parameters": 0})["parameters"]


def shallow(path):
    """Return changes to a giant that make it one of few blocks, {} for any other variant.

    A model whose widths lie on a line over its blocks gets a steeper one, that of as many stages.
    """
    known = inspect.signature(builder(path.parents[1])).parameters
    if size_of(path) <= GIANT_PARAMETERS or "depth" not in known:
        return {}
    if "width_slope" not in known:
        return {"depth": GIANT_DEPTH}
    own = load_config([f"-cfg={path}"], builder(path.parents[1])).MODEL.ARGUMENTS
    return {"depth": GIANT_LINE, "width_slope": own["width_slope"] * (own["depth"] - 1) / (GIANT_LINE - 1)}


def by_cost(paths=CONFIGS, fast=FAST_VARIANTS):
    """Return YAMLs as cases of a test, the slow ones marked, but never the smallest of a family."""
    cases, families = [], {}
    for path in sorted(paths, key=size_of):
        index = families[path.parents[1]] = families.get(path.parents[1], -1) + 1
        slow = index >= fast or (index > 0 and size_of(path) > FAST_PARAMETERS)
        cases.append(pytest.param(path, id=path.stem, marks=pytest.mark.slow if slow else ()))
    return cases
