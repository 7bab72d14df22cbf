"""Models by the name of their variant, and the images that they expect."""

import dataclasses
import difflib
import fnmatch
import importlib
import inspect
import json
import numbers
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from PIL import Image

from .config import Config, family_of_file, find_yaml, load_config, variants
from .config.catalogue import module_of
from .config.merge import FILLED_IN
from .config.unread import OF_WEIGHTS
from .data.build import build_eval_transform, build_train_transform
from .data.datasets import LARGEST_FILE
from .data.decode import CorruptImage, pillow_pixels
from .data.normalize import Normalize
from .files.plain import read_plain
from .runtime import UserError, select_device
from .saved_config import warn_of_other_model
from .weights import (
    Pretrained,
    differences,
    is_here,
    load_pretrained,
    locate,
    published,
    read_registry,
    read_variants,
    read_weights,
    with_preprocessing,
)
from .weights.preprocessing import NORMALISATION

# Keys that a transform reads, of an evaluation or of a training.
OF_TRANSFORM = (
    *(key for key in OF_WEIGHTS if key.startswith("DATA.")),
    *(f"DATA.{name}" for name in ("TRAIN_CROP", "CROP_SCALE", "CROP_RATIO", "CROP_PADDING", "HFLIP", "SCALED_DECODE")),
)
# Arguments of every model, as keys of the DATA section.
OF_DATA = {name: key for name, key in FILLED_IN.items() if key.startswith("DATA.")}


def list_models(pattern="*", pretrained=False):
    """Return the names of the variants that match a shell pattern, sorted; `pretrained`: those with weights."""
    known = {name for family in read_variants().values() for name, entry in family.items() if entry["weights"]}
    return [name for name in sorted(fnmatch.filter(variants(), pattern.lower())) if not pretrained or name in known]


def create_model(name, pretrained=False, num_classes=None, **overrides):
    """Return a model of the zoo in float32 and in training mode: a `paddle.nn.Layer`, [B, C, S, S] to [B, classes].

    Args:
        name: a variant (`list_models`), a recipe, or a YAML file, such as a run folder's `config.yaml`.
        pretrained: True for the weights that `tools/list_models.py` shows for the variant; a registry id, `hf-hub:` id,
            URL or file for others; False for fresh ones.
        num_classes: outputs; None for as many as the registry's weights or the YAML have. Another number than the
            weights' gives a fresh head.
        overrides: arguments of the family's `build_model`, such as `depth=6` or `drop_path=0.1`, `image_size` (position
            embeddings are resampled) and `in_channels`.

    Raises:
        UserError: a ValueError of one line: an unknown name or argument, with the nearest one; a value out of range;
            weights that do not fit or cannot be had.
    """
    path, build_model = find_config(name, "create_model")
    known = [word for word in inspect.signature(build_model).parameters if word not in FILLED_IN]
    keys = {word: f"MODEL.{word.upper()}" for word in known} | OF_DATA
    weights = _default_weights(name, path, build_model) if pretrained is True else _named(pretrained)
    entry = published(weights)
    if num_classes is None and entry is not None and entry.classes:
        options = [f"MODEL.NUM_CLASSES={entry.classes}"]
    else:
        options = [] if num_classes is None else [f"MODEL.NUM_CLASSES={num_classes}"]
    options += _words("create_model", keys, overrides)
    channels = overrides.get("in_channels")
    if isinstance(channels, numbers.Integral):  # whatever the images are normalised with, a model does not say
        options += [f"DATA.{key}={[0.5] * int(channels)}" for key in NORMALISATION]
    config = _configured(path, build_model, weights, options, said_by="create_model")
    if weights is not None:
        refuse_other_weights(config, build_model, weights)
    model = make_model(config, build_model)
    if weights is not None:
        loaded = load_pretrained(model, weights, replace_head=num_classes is not None)
        warn_of_other_model(loaded.config, config, f"create_model: {weights}", of_data=())
    return model


def create_transform(name, pretrained=True, training=False, **overrides):
    """Return a function from one image to what a model expects of it, float32 [C, S, S] as a NumPy array.

    The function takes a path, the bytes of a file, a Pillow image or uint8 pixels [H, W] or [H, W, C]; with `training`
    also an `rng`, a `numpy.random.Generator` or its seed for the random crop, flip and augmentation.

    Args:
        name, pretrained: as for `create_model`; the preprocessing that belongs to the weights, nothing is fetched.
        training: the random transform of the variant's recipe instead of the evaluation's.
        overrides: keys of the DATA section in lower case, such as `image_size=384` or `crop_pct=1.0`; those that only
            the other of both transforms reads may stand there, those of a loader are refused.

    Raises:
        UserError: as for `create_model`; from the function: an image that cannot be read.
    """
    path, build_model = find_config(name, "create_transform")
    keys = {key.removeprefix("DATA.").lower(): key for key in OF_TRANSFORM}
    weights = _default_weights(name, path, build_model, needed=False) if pretrained is True else _named(pretrained)
    place = locate(weights) if weights is not None and published(weights) is None else None
    words = _words("create_transform", keys, overrides)
    config = _configured(path, build_model, weights, words, training, "create_transform")
    if isinstance(place, Path):
        warn_of_other_model(read_weights(place).config, config, f"create_transform: {weights}", of_model=False)
    transform = build_train_transform(config) if training else build_eval_transform(config.DATA)
    normalize = Normalize(config.DATA.IMAGENET_MEAN, config.DATA.IMAGENET_STD)

    def prepare(image, rng=None):
        given = image
        try:
            if isinstance(image, str | os.PathLike):
                image = read_plain(image, LARGEST_FILE)
            elif isinstance(image, Image.Image):
                image = pillow_pixels(image, 1 if image.mode == "L" else 3, config.DATA.EXIF_ORIENTATION)
            elif not isinstance(image, bytes | bytearray | memoryview):
                _check_pixels(image)
            pixels = transform(image, np.random.default_rng(rng) if training else rng)
        except CorruptImage as error:
            place = given if isinstance(given, str | os.PathLike) else f"an image ({type(given).__name__})"
            raise UserError(f"{place}: is no image that can be read: {error}") from None
        return normalize(pixels[None].transpose(0, 3, 1, 2))[0]

    return prepare


def _check_pixels(image):
    """Refuse all but pixels: what floating numbers, 16 bits or other channels mean is not to be guessed."""
    shape = image.shape if isinstance(image, np.ndarray) else ()
    channels = {2: 1, 3: shape[-1:] and shape[-1]}.get(len(shape))
    if channels not in (1, 3, 4) or image.dtype != np.uint8 or 0 in shape:
        found = f"{image.dtype} {list(shape)}" if isinstance(image, np.ndarray) else type(image).__name__
        raise UserError(
            f"an image is a path, the bytes of a file, a Pillow image or uint8 pixels [H, W] or [H, W, C], not {found}"
        )


def find_config(name, what="-cfg"):
    """Return (path of the YAML, its family's `build_model`) for a variant's or a recipe's name, or a YAML anywhere.

    Raises:
        UserError: there is no such variant or file, or the YAML's MODEL.NAME is none of the zoo.
    """
    try:
        path = find_yaml(name, what=what)
    except UserError:
        for entry in read_registry().values():
            if name in (entry.id, entry.id.rpartition("/")[2], f"hf-hub:{entry.id}"):  # as timm calls both in one
                raise UserError(f"{what}: {name}: names weights; the model is {entry.variant}, and its weights, "
                                f"pretrained, are {entry.id}") from None  # fmt: skip
        raise
    return path, importlib.import_module(module_of(family_of_file(path))).build_model


def make_model(config, build_model):
    """Return the model in float32 with fresh weights.

    Raises:
        UserError: a value of MODEL, or DATA.IMAGE_SIZE, that the model cannot have.
    """
    known = inspect.signature(build_model).parameters
    filled_in = {name: operator.attrgetter(key)(config) for name, key in FILLED_IN.items() if name in known}
    try:
        model = build_model(**config.MODEL.ARGUMENTS | filled_in)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"MODEL: {error}") from None
    model.check_image(config.DATA.IMAGE_SIZE, config.DATA.IMAGE_SIZE)
    return model


def refuse_other_weights(config, build_model, source):
    """Refuse the published weights of another architecture before they are fetched; those that are here are
    compared when they are read.

    The head and the positions, which a training and another image size change, are not compared, nor the plain form of
    inference, into which weights are folded.

    Raises:
        UserError: names the variant that the weights are of, and what does not fit.
    """
    entry = published(source)
    if entry is None or is_here(source):
        return
    path, builder = find_config(entry.variant)
    trains = {name: value for name, value in config.MODEL.ARGUMENTS.items() if name != "deploy"}
    config = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, ARGUMENTS=trains))
    with paddle.LazyGuard():  # shapes only, no memory
        models = make_model(config, build_model), make_model(load_config([f"-cfg={path}"], builder), builder)
    changing = [name for model in models for name in (*model.head_names, *model.position_embeddings())]
    own, other = (
        {name: value for name, value in model.state_dict().items() if not name.startswith(tuple(changing))}
        for model in models
    )
    text = differences(own, other)
    if text:
        raise UserError(f"-pretrained: {source}: is of {entry.variant} as its YAML has it, which does not fit "
                        f"this model: {text}")  # fmt: skip


def load_model(name, pretrained=None, options=()):
    """Return (model in evaluation mode, its configuration with the weights' preprocessing).

    Args:
        name: a variant or a YAML file, such as a run folder's `config.yaml`.
        pretrained: weights as `-pretrained` takes them; None keeps the fresh ones.
        options: KEY=VALUE words, as `-opts` takes them.
    """
    return load_with_report(name, pretrained, options)[:2]


def load_with_report(name, pretrained, options):
    """Return what :func:`load_model` does and the `LoadReport` of the weights, None without any."""
    return read_model(name, pretrained, options).load()


def read_model(name, pretrained, options):
    """Return the :class:`ModelRead` of what :func:`load_model` takes."""
    path, build_model = find_config(name)
    config = _configured(path, build_model, pretrained, options)
    if not pretrained:
        return ModelRead(path, build_model, config, None)
    refuse_other_weights(config, build_model, pretrained)
    return ModelRead(path, build_model, config, Pretrained.read(pretrained))


@dataclasses.dataclass(frozen=True)
class ModelRead:
    """A model that is not built yet: its YAML, its configuration, and its weights as they were read, None for fresh."""

    path: Path
    build_model: Callable[..., Any]
    config: Config
    weights: Pretrained | None

    def check(self, replace_head):
        """See that the weights fit, where `replace_head` of any number of classes; nothing is built."""
        with paddle.LazyGuard():  # shapes only, no memory
            model = make_model(self.config, self.build_model)
        self.weights.fit(model, replace_head)

    def load(self, num_classes=None):
        """Return (model in evaluation mode, its configuration, the `LoadReport` of the weights, None without any)."""
        of_model = self.config.MODEL
        of_model = dataclasses.replace(of_model, NUM_CLASSES=num_classes or of_model.NUM_CLASSES)
        config = dataclasses.replace(self.config, MODEL=of_model)
        select_device(config.DEVICE)
        model, loaded = make_model(config, self.build_model), None
        if self.weights:
            loaded = self.weights.load(model, replace_head=False)
            warn_of_other_model(loaded.config, config, f"-pretrained: {self.weights.source}")
        model.eval()
        return model, config, loaded


def _configured(path, build_model, weights, options, training=False, said_by="command line -opts"):
    """Return the configuration of a YAML with KEY=VALUE words and the preprocessing of weights."""
    words = [f"-cfg={path}"] + ([] if training else ["-eval"])
    words += [] if weights is None else [f"-pretrained={weights}"]
    words += ["-opts", *options] if options else []
    try:
        return with_preprocessing(load_config(words, build_model))
    except UserError as error:
        raise UserError(str(error).replace("command line -opts", said_by)) from None


def _named(pretrained):
    """Return the source of weights as text, None for none; an empty text is a source that is not there."""
    return None if pretrained in (None, False) else os.fspath(pretrained)


def _default_weights(name, path, build_model, needed=True):
    """Return the id of the weights that stand for a variant."""
    variant = load_config([f"-cfg={path}"], build_model).MODEL.NAME if path.stem not in variants() else path.stem
    found = next((family[variant].get("default") for family in read_variants().values() if variant in family), None)
    if found is None and needed:
        raise UserError(f"pretrained: {name} has no published weights; give the file of its weights instead of True")
    return found


def _words(function, keys, overrides):
    """Return KEY=VALUE words for the keyword arguments of a function."""
    words = []
    for name, value in overrides.items():
        if name not in keys:
            near = difflib.get_close_matches(name, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(keys)}"
            raise UserError(f"{function}: no argument {name!r}; {hint}")
        words.append(f"{keys[name]}={json.dumps(value, default=np.generic.item)}")  # NumPy's numbers are numbers
    return words
