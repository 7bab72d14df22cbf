"""Published or own weights into a model: every name checked both ways before anything changes."""

import dataclasses
import os
from pathlib import Path

import numpy as np
from paddle import nn

from ..runtime import UserError, get_logger, some_of
from .keymap import translate
from .position import resize_positions
from .read import WeightFile, read_weights
from .source import find_weights

MOST_NAMED = 4  # of each kind of difference, so that an error stays a line


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What loading did: `source` as it was named, of a folder its file; `replaced` are the head's fresh parameters.

    `config` is the text of the configuration that a checkpoint of this project has, else None.
    """

    source: str
    path: str
    kind: str
    dialect: str
    num_tensors: int
    replaced: tuple[str, ...]
    resized: tuple[str, ...]
    config: str | None


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Weights as they were read: `source` as it was named, the file that it is, what is in it."""

    source: str
    path: Path
    file: WeightFile

    @classmethod
    def read(cls, source):
        """Return what `source` holds: a registry id, hub id, URL or file; see :func:`find_weights`.

        Raises:
            UserError: it cannot be read.
        """
        path = find_weights(source)
        try:
            return cls(source, path, read_weights(path))
        except UserError as error:
            raise UserError(f"-pretrained: {error}") from None

    def fit(self, model, replace_head):
        """Return (tensors, dialect, head's names that are left out, names resized) as a model takes them.

        Raises:
            UserError: unmatched, missing and wrong-shape names, all of them counted; values that are not finite.
        """
        state = model.state_dict()
        tensors, dialect = translate(self.file.tensors, model)
        if self.file.layout == "torch":
            tensors = transpose_linears(linear_weights(model), tensors)
        tensors, resized = _fit_position_embeddings(model, state, tensors)
        replaced = replaceable_head(model, state, tensors) if replace_head else ()
        _check(self.source, dialect, state, tensors, replaced)
        used = {name: value for name, value in tensors.items() if name not in replaced}
        sums = ((name, np.sum(_float32(value), dtype=np.float64)) for name, value in used.items())
        bad = next((name for name, total in sums if not np.isfinite(total)), None)
        if bad is not None:
            raise UserError(
                f"-pretrained: {self.source}: {bad} has values that are not finite (inf or NaN) in float32"
            )
        return used, dialect, replaced, resized

    def load(self, model, replace_head):
        """Fill a model and return a :class:`LoadReport`, see :func:`load_pretrained`."""
        used, dialect, replaced, resized = self.fit(model, replace_head)
        state = model.state_dict()
        for name, value in used.items():
            state[name].set_value(_float32(value))
        named = str(self.path) if os.path.isdir(self.source) else self.source
        report = LoadReport(
            named, str(self.path), self.file.kind, dialect, len(used), tuple(replaced), tuple(resized), self.file.config
        )
        _log(report)
        return report


def load_pretrained(model, source, replace_head=False):
    """Fill the model's parameters and buffers from `source` and return a :class:`LoadReport`.

    Args:
        model: a float32 model of the zoo; nothing of it changes unless everything fits.
        source: registry id, hub id, URL or file; see :func:`find_weights`.
        replace_head: keep the model's own fresh head where the source has another number of classes.

    Raises:
        UserError: unmatched, missing and wrong-shape names, all of them counted; values that are not finite; or the
            source cannot be read.
    """
    return Pretrained.read(source).load(model, replace_head)


def _float32(value):
    with np.errstate(over="ignore"):  # float64 beyond float32's range, which becomes inf
        return np.asarray(value, np.float32, order="C")


def linear_weights(model):
    """Return the names of the weights of linear layers: [in, out] in Paddle, [out, in] in PyTorch.

    The layer's type decides, never the shape: a square weight looks the same both ways.
    """
    return frozenset(f"{name}.weight" for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear))


def transpose_linears(linears, tensors):
    """Return the tensors with those of the names `linears` transposed between PyTorch's and Paddle's layout."""
    return {name: value.T if name in linears and value.ndim == 2 else value for name, value in tensors.items()}


def _fit_position_embeddings(model, state, tensors):
    """Return the tensors with the model's positions resampled to its grid, and the names that changed."""
    resized = {}
    for name, stated in model.position_embeddings().items():
        own, loaded = tuple(state[name].shape), tensors[name].shape if name in tensors else ()
        if loaded != own and len(loaded) == len(own):
            resized[name] = resize_positions(np.asarray(tensors[name], np.float32), stated)
    return tensors | resized, list(resized)


def replaceable_head(model, state, tensors):
    """Return the head's names whose number of classes differs, or that the source lacks or alone has."""
    head = {name for name in {*state, *tensors} if name.startswith(tuple(f"{part}." for part in model.head_names))}

    shapes = {name: (tuple(tensors[name].shape), tuple(state[name].shape)) for name in head & {*state} & {*tensors}}
    if len({loaded[-1:] for loaded, _ in shapes.values()}) > 1:  # no head of any number of classes
        return []

    def differs(name):
        if name not in shapes:
            return True
        loaded, own = shapes[name]
        return len(loaded) == len(own) > 0 and loaded[:-1] == own[:-1] and loaded[-1] not in (0, own[-1])

    return sorted(filter(differs, head))


def _check(source, dialect, state, tensors, replaced):
    own, loaded = ({name: named[name] for name in named if name not in replaced} for named in (state, tensors))
    text = differences(own, loaded)
    if text:
        raise UserError(f"-pretrained: {source} ({dialect}) does not fit this model: {text}")


def differences(own, loaded):
    """Return how the names and shapes that were loaded differ from a model's own, as text; "" where all fit."""
    missing = [name for name in own if name not in loaded]
    unmatched = [name for name in loaded if name not in own]
    shapes = [
        f"{name} {list(loaded[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if name in loaded and list(loaded[name].shape) != list(own[name].shape)
    ]
    parts = []
    for words, names in (("lacks", missing), ("has unmatched", unmatched), ("has other shapes:", shapes)):
        if names:
            parts.append(f"it {words} {some_of(names, MOST_NAMED)}")
    return "; ".join(parts)


def _log(report):
    logger = get_logger()
    logger.info("pretrained: %s (%s, %s), %d tensors", report.source, report.kind, report.dialect, report.num_tensors)
    if report.resized:
        logger.info("pretrained: %s interpolated to this image size", ", ".join(report.resized))
    if report.replaced:
        logger.info("pretrained: another number of classes, fresh head: %s", ", ".join(report.replaced))
