"""A configuration as plain values and as YAML: the recipe that a run leaves, and what belongs to one invocation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml

from .schema import Config


def to_yaml(config: Config) -> str:
    """Return the recipe as YAML that loads to the same recipe: all but what belongs to this invocation."""
    return yaml.safe_dump(plain(config, recipe=True), sort_keys=False, default_flow_style=None)


def invocation_yaml(config: Config) -> str:
    """Return what :func:`to_yaml` leaves out: weights, folder, device, ranks and the like."""
    return yaml.safe_dump(plain(config, recipe=False), sort_keys=False, default_flow_style=None)


def plain(value: Any, recipe: bool) -> dict[str, Any]:
    """Return a configuration as plain values: the keys of its recipe, or the others; sections without any are left."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        entry = getattr(value, field.name)
        if dataclasses.is_dataclass(entry):
            section = plain(entry, recipe)
            fields |= {field.name: section} if section else {}
        elif isinstance(entry, Mapping):  # the options of a mode, the arguments of a model: always of the recipe
            fields |= {name.upper(): _plain_value(each) for name, each in entry.items()} if recipe else {}
        elif field.metadata["recipe"] == recipe:
            fields[field.name] = _plain_value(entry)
    return fields


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_value(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain_value(entry) for entry in value]
    return value
