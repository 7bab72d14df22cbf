"""PaddleViT's YAML files as they are: its keys in ours, and what its config.py says where they are silent.

A file is PaddleViT's if it, or a BASE of it, has MODEL.TYPE. What a family of PaddleViT calls otherwise, what it has
beside, and its defaults are facts, not code: `paddlevit.yaml` in the family's folder, see `configs/paddlevit.yaml`.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..runtime import UserError
from .catalogue import family_of, model_folders, name_of, variants
from .merge import Layer, read_yaml
from .values import as_numbers, shown

FACTS = "paddlevit.yaml"
MARKER = "MODEL.TYPE"
TABLES = ("RENAMED", "VALUES", "FIXED", "WITHOUT_EFFECT")  # of a file of facts; the rest but TYPES are defaults
TWO_HEADS = "distilled"  # argument of a model that has a head of its own for what a teacher says
JITTER = "TRAIN.COLOR_JITTER"  # one number there, a list here
MAGNITUDES = 3  # of ours, 0 to 30, in one of PaddleViT's, 0 to 10


class Facts(NamedTuple):
    """What `paddlevit.yaml` of a family says, that of its BASE included; `defaults` are layers in PaddleViT's keys."""

    types: list[str]
    defaults: list[Layer]
    renamed: dict[str, str]
    values: dict[str, dict[Any, Any]]
    fixed: dict[str, Any]
    without_effect: dict[str, str]


def is_foreign(layers: Iterable[Layer]) -> bool:
    """Return whether the layers of a file are in PaddleViT's dialect."""
    return _type_of(layers) is not None


def family_of_file(path: Path) -> str:
    """Return the model folder of a YAML's model: the one it lies in, that of PaddleViT's MODEL.TYPE or of MODEL.NAME.

    Raises:
        UserError: MODEL.TYPE or MODEL.NAME is none of the zoo.
    """
    if path.resolve() == variants().get(path.stem):
        return path.resolve().parents[1].name
    layers = read_yaml(path)
    kind = _type_of(layers)
    if kind is None:
        family = family_of(name_of(layers))
        if family is None:
            raise UserError(f"-cfg: {path}: its MODEL.NAME is no variant of the zoo; tools/list_models.py lists them")
        return family
    for family, folder in model_folders().items():
        facts = read_facts(folder)
        if facts is not None and str(kind).lower() in facts.types:
            return family
    raise UserError(f"-cfg: {path}: {MARKER} {kind} is no family of PaddleViT that is known here")


def read_facts(folder: Path) -> Facts | None:
    """Return what a family's folder says of PaddleViT's files, None where it says nothing."""
    path = folder / FACTS
    if not os.path.isfile(path):
        return None
    types: list[str] = []
    tables: dict[str, dict[str, Any]] = {section: {} for section in TABLES}
    defaults: list[Layer] = []
    for source, mapping in read_yaml(path):
        rest = dict(mapping)
        types += [name.lower() for name in rest.pop("TYPES", [])]
        for section, table in tables.items():
            for key, entry in rest.pop(section, {}).items():
                table[key] = {**table.get(key, {}), **entry} if section == "VALUES" else entry
        defaults.append((source, rest))
    return Facts(types, defaults, *tables.values())


def translate(layers: list[Layer], build_model: Callable[..., Any] | None) -> tuple[list[Layer], str]:
    """Return the layers of PaddleViT's file in our keys, its defaults below them, and one line that says what was read.

    Raises:
        UserError: the file is of another family, or asks for what is not computed here.
    """
    source = layers[-1][0]
    folder = Path(inspect.getfile(build_model)).parent if build_model else Path()
    facts, kind = read_facts(folder), str(_type_of(layers))
    if facts is None:
        raise UserError(f"{source}: {MARKER} marks a file of PaddleViT: none of its families is {folder.name} here")
    if kind.lower() not in facts.types:
        raise UserError(f"{source}: {MARKER} {kind}: {folder.name} takes {', '.join(facts.types)}")
    said: dict[str, None] = {}
    own: list[Layer] = [(name, nested(_own_keys(name, mapping, facts, {}))) for name, mapping in facts.defaults]
    own += [(name, nested(_own_keys(name, mapping, facts, said))) for name, mapping in layers]
    effective: dict[str, Any] = {}
    for _, mapping in own:
        effective |= dict(flattened(mapping))
    own.append((f"{source}, as PaddleViT reads it", _rules(effective, build_model)))
    note = f"{source} is PaddleViT's; where it is silent, the defaults of PaddleViT's config.py hold"
    return own, "; ".join([note, *said])


def _type_of(layers: Iterable[Layer]) -> Any:
    found = [dict(flattened(mapping)).get(MARKER) for _, mapping in layers]
    return next((kind for kind in reversed(found) if kind is not None), None)


def _own_keys(source: str, mapping: Mapping[str, Any], facts: Facts, said: dict[str, None]) -> dict[str, Any]:
    """Return {our dotted key: value} of one file; what has another name or no effect here is added to `said`."""
    flat: dict[str, Any] = {}
    for key, value in flattened(mapping):
        if key in facts.without_effect:
            said[f"{key}: {facts.without_effect[key]}"] = None
        elif key in facts.fixed:
            only = facts.fixed[key]
            if as_numbers(value) != as_numbers(only) and str(value).lower() != str(only).lower():
                raise UserError(f"{source}: {key}: only {shown(only)} is computed here, found {shown(value)}")
            said[f"{key}: {shown(value)} is what is computed here"] = None
        else:
            name = facts.renamed.get(key, key)
            if name != key:
                said[f"{key}: {name}"] = None
            known = facts.values.get(key, {})
            if isinstance(value, str | int | float) and value in known:
                said[f"{key} {value}: {known[value]}"] = None
                value = known[value]
            flat[name] = [value] if key == JITTER and not isinstance(value, list) else value
    return flat


def _rules(effective: Mapping[str, Any], build_model: Callable[..., Any] | None) -> dict[str, Any]:
    """Return what follows from several keys, or from a value in other units."""
    rules: dict[str, Any] = {}
    if effective["TRAIN.RAND_AUGMENT"]:  # one of the three, in this order
        rules["TRAIN.AUTO_AUGMENT"] = False
    if effective["TRAIN.RAND_AUGMENT"] or effective["TRAIN.AUTO_AUGMENT"]:
        rules[JITTER] = [0.0]
    magnitude = effective["TRAIN.RAND_AUGMENT_MAGNITUDE"]
    rules["TRAIN.RAND_AUGMENT_MAGNITUDE"] = magnitude * MAGNITUDES if isinstance(magnitude, int) else magnitude
    if build_model and TWO_HEADS in inspect.signature(build_model).parameters:
        rules[f"MODEL.{TWO_HEADS.upper()}"] = str(effective.get("TRAIN.DISTILLATION_TYPE", "none")).lower() != "none"
    return nested(rules)


def flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return {dotted key: value} as sections of sections."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise UserError(f"{'.'.join(sections)}: expected a section of keys, found {shown(inner)}")
        inner[leaf] = value
    return nested
