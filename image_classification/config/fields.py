"""The fields that a schema is made of: default, meaning, and what a value must satisfy besides its type."""

import dataclasses
import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    recipe: bool = True,
) -> Any:
    """Return a dataclass field with its help text and limits (``minimum`` and ``maximum`` included, ``above`` not).

    ``recipe`` False: it belongs to one invocation, and is not handed on to the next one.
    """
    limits = {"choices": choices, "minimum": minimum, "above": above, "maximum": maximum, "recipe": recipe}
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def derived(default: Any, help: str) -> Any:
    """Return a dataclass field that no file and no command line sets: it is worked out from what they do set."""
    return dataclasses.field(default=default, metadata={"help": help, "derived": True, "recipe": None})


def mapping(help: str) -> Any:
    """Return a dataclass field that holds a read-only mapping, empty by default."""
    return dataclasses.field(default_factory=lambda: MappingProxyType({}), metadata={"help": help})


def section(kind: type) -> Any:
    """Return a dataclass field that holds a nested section."""
    return dataclasses.field(default_factory=kind, metadata={"help": kind.__doc__})


def check_limits(value: Any, limits: Mapping[str, Any]) -> None:
    """Check a value of the right type, or each entry of a tuple, against the limits of its field; None satisfies all.

    Raises:
        ValueError: the text says what was expected.
    """
    if value is None:
        return
    if isinstance(value, tuple):
        for entry in value:
            check_limits(entry, limits)
        return
    choices, minimum, above, maximum = (limits.get(name) for name in ("choices", "minimum", "above", "maximum"))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"expected one of {', '.join(choices)}{hint}")
    for bound, fails, words in (
        (minimum, lambda bound: value < bound, "at least"),
        (above, lambda bound: value <= bound, "more than"),
        (maximum, lambda bound: value > bound, "at most"),
    ):
        if bound is not None and fails(bound):
            raise ValueError(f"expected {words} {bound}")
