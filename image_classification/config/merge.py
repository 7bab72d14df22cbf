"""Layers of settings become one frozen configuration: default < BASE < YAML < command line."""

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from ..files.plain import read_text
from ..runtime import UserError
from .catalogue import find_yaml
from .fields import within
from .schema import Config, Model
from .values import as_numbers, convert, shown
from .yaml_text import load_yaml

# A source of settings, as errors name it, and what it sets.
Layer: TypeAlias = tuple[str, Mapping[str, Any]]
Builder: TypeAlias = Callable[..., Any]

# Arguments of build_model that a key of its own, or of another section, decides.
FILLED_IN = {"num_classes": "MODEL.NUM_CLASSES", "image_size": "DATA.IMAGE_SIZE", "in_channels": "DATA.IMAGE_CHANNELS"}
MOST_FILES = 100  # that a configuration is made of; each may name several
# What holds for every argument of a model: sizes, counts, ratios, rates; and no norm takes a larger epsilon.
SIZE, RATIO = {"minimum": 1, "maximum": 1 << 20}, {"minimum": 0, "maximum": 1 << 20}
EPSILON = {"minimum": 0, "maximum": 1e-3}


def build_config(layers: Iterable[Layer], build_model: Builder | None = None) -> Config:
    """Return the frozen :class:`Config` of ``layers``: [(name of the source, nested mapping)], the last one wins.

    Args:
        layers: sources are named in error messages: a file, ``command line -batch_size``.
        build_model: its signature is the schema of the MODEL section; without it MODEL takes the fixed keys only.

    Raises:
        UserError: unknown key (with the nearest valid one), wrong type, value out of range.
    """
    schema = _Schema(build_model)
    values: dict[str, Any] = {}
    for source, mapping in layers:
        schema.said = set()
        schema.merge(values, source, mapping)
    return _construct(Config, values)


def read_yaml(path: str | Path) -> list[Layer]:
    """Return the layers of a YAML file, those of its BASE files first.

    ``BASE`` is a file or a list of files, relative to the file that names them, or by name: of a model, a recipe, a
    data set or a precision mode that the project brings.
    """
    layers: list[Layer] = []
    _read_yaml(Path(path), (), layers)
    return layers


def split_smoke(layers: Iterable[Layer]) -> tuple[list[Layer], list[Layer]]:
    """Return ``layers`` without their ``SMOKE`` sections, and those sections as layers of their own.

    A ``SMOKE`` section holds the keys of the small version of a recipe, the one that ``RUNTIME.SMOKE`` asks for.

    Raises:
        UserError: a SMOKE section is not a mapping.
    """
    plain: list[Layer] = []
    smoke: list[Layer] = []
    for source, mapping in layers:
        if "SMOKE" in mapping:
            mapping = dict(mapping)
            section = mapping.pop("SMOKE")
            if not isinstance(section, dict):
                raise UserError(f"{source}: SMOKE: expected a section of keys, found {shown(section)}")
            smoke.append((f"{source}, SMOKE", section))
        plain.append((source, mapping))
    return plain, smoke


def _read_yaml(path: Path, parents: tuple[Path, ...], layers: list[Layer]) -> None:
    """Add a file's layer to ``layers``, behind those of its BASE files."""
    try:
        text = read_text(path)
    except UserError as error:
        raise UserError(f"{error} (BASE of {parents[-1]})" if parents else str(error)) from None
    if path.resolve() in parents:
        raise UserError(f"{path}: BASE goes in a circle")
    if len(parents) > MOST_FILES or len(layers) > MOST_FILES:
        raise UserError(f"{path}: BASE leads to more than {MOST_FILES} files")
    mapping = load_yaml(text, str(path))
    if mapping is None:
        raise UserError(f"{path}: is empty")
    if not isinstance(mapping, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(mapping).__name__}")
    bases = mapping.pop("BASE", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: BASE: expected a file name or a list of file names, found {shown(bases)}")
    for base in filter(None, bases):
        _read_yaml(find_yaml(base, path.parent, f"BASE of {path}"), (*parents, path.resolve()), layers)
    layers.append((str(path), mapping))


def keys_of() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return {dotted key: (type, metadata)} of all that can be set, but for the arguments of models and modes."""
    keys = dict(_flatten(Config))
    hidden = ["MODEL.ARGUMENTS", "AMP.OPTIONS", *(key for key, (_, data) in keys.items() if "derived" in data)]
    return {key: found for key, found in keys.items() if key not in hidden}


class _Schema:
    """Dotted key -> (type, metadata), and the rules of the two open sections MODEL and AMP."""

    def __init__(self, build_model: Builder | None):
        self.keys = keys_of()
        self.sections = {"": Config, **dict(_sections(Config))}
        self.argument_names: dict[str, str] = {}
        self.said: set[str] = set()  # keys of the layer that is merged, by dots or by sections
        if build_model is not None:
            for name, parameter in inspect.signature(build_model).parameters.items():
                if name in FILLED_IN or parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    continue
                kind = parameter.annotation
                if kind is inspect.Parameter.empty:
                    kind = typing.Any if parameter.default is None else type(parameter.default)
                part = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
                ratio = EPSILON if name.endswith("epsilon") else RATIO
                self.keys[f"MODEL.{name.upper()}"] = (kind, {int: SIZE, float: ratio}.get(part, {}))
                self.argument_names[f"MODEL.{name.upper()}"] = name

    def merge(self, values: dict[str, Any], source: str, mapping: Mapping[str, Any], prefix: str = "") -> None:
        spelt = [str(key).lower() for key in mapping]
        if prefix == "AMP." and len(set(spelt)) < len(spelt):  # its options have no case
            raise UserError(f"{source}: AMP: {max(spelt, key=spelt.count)} stands there twice")
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            if name == "AMP" and isinstance(value, bool):
                # PaddleViT's switch, `AMP: True`
                values["AMP.MODE"] = "auto" if value else "fp32"
            elif name in self.sections:
                if not isinstance(value, dict):
                    raise UserError(f"{source}: {name}: expected a section of keys, found {shown(value)}")
                self.merge(values, source, value, f"{name}.")
            elif prefix == "AMP." and name.upper() not in self.keys:
                options = dict(values.get("AMP.OPTIONS", {}))
                entries = value.items() if key == "OPTIONS" and isinstance(value, dict) else [(key, value)]
                options.update({str(entry).lower(): as_numbers(setting) for entry, setting in entries})
                values["AMP.OPTIONS"] = MappingProxyType(options)
            else:
                self._set(values, source, name, value)

    def _set(self, values: dict[str, Any], source: str, name: str, value: Any) -> None:
        if name not in self.keys:
            raise UserError(f"{source}: {name} is not a key{self._suggestion(name)}")
        if name in self.said:
            raise UserError(f"{source}: {name} stands there twice")
        self.said.add(name)
        kind, limits = self.keys[name]
        try:
            value = within(convert(value, kind), limits)
        except ValueError as error:
            raise UserError(f"{source}: {name}: {error}, found {shown(value)}") from None
        if name in self.argument_names:
            values["MODEL.ARGUMENTS"] = values.get("MODEL.ARGUMENTS", {}) | {self.argument_names[name]: value}
        else:
            values[name] = value

    def _suggestion(self, name: str) -> str:
        names = [full for full in (*self.keys, *self.sections) if full and not name.upper().startswith(f"{full}.")]
        near = [full for full in names if full.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1].upper()]
        if len(near) != 1:  # else the right key in the wrong section
            close = functools.partial(difflib.get_close_matches, name.upper(), names)
            near = close(n=1, cutoff=0.85) or close(n=2)  # a slip of the fingers, or another word
        if not near:
            leaves = {full.rsplit(".", 1)[-1]: full for full in names}
            near = [leaves[leaf] for leaf in difflib.get_close_matches(name.rsplit(".", 1)[-1].upper(), leaves, n=1)]
        if near:
            return f"; did you mean {' or '.join(near)}?"
        section = name.rpartition(".")[0]
        keys = [full for full in names if full.rpartition(".")[0] == section]
        return f"; {section or 'the top level'} has {', '.join(full.rsplit('.', 1)[-1] for full in keys)}"


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _flatten(kind: type, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Mapping[str, Any]]]]:
    hints = _hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _flatten(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", (hints[field.name], field.metadata)


def _sections(kind: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    for name, hint in _hints(kind).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield f"{prefix}{name}", hint
            yield from _sections(hint, f"{prefix}{name}.")


def _construct(kind: type, values: dict[str, Any], prefix: str = "") -> Any:
    hints = _hints(kind)
    arguments = {}
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = _construct(hints[field.name], values, f"{name}.")
        elif name in values:
            arguments[field.name] = values[name]
    if kind is Model and "ARGUMENTS" in arguments:
        arguments["ARGUMENTS"] = MappingProxyType(dict(arguments["ARGUMENTS"]))
    return kind(**arguments)
