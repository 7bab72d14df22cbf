"""The fields that a schema is made of: default, meaning, and what a value must satisfy besides its type."""

import dataclasses
import difflib
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..runtime import UserError


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    meant: Mapping[str, str] = MappingProxyType({}),
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    rising: bool = False,
    recipe: bool = True,
) -> Any:
    """Return a dataclass field with its help text and limits.

    ``minimum`` and ``maximum`` are included, ``above`` and ``below`` are not; a word beside numbers has no limits. A
    choice may be written in large or small letters; ``meant`` has words that are none, in small letters, and what
    somebody wants who writes one; ``rising`` values go from the smallest to the largest.

    ``recipe`` False: it belongs to one invocation, and is not handed on to the next one.
    """
    limits = {"choices": choices, "meant": meant, "minimum": minimum, "above": above, "maximum": maximum,
              "below": below, "rising": rising}  # fmt: skip
    return dataclasses.field(default=default, metadata={"help": help, "recipe": recipe, **limits})


def derived(default: Any, help: str) -> Any:
    """Return a dataclass field that no file and no command line sets: it is worked out from what they do set."""
    return dataclasses.field(default=default, metadata={"help": help, "derived": True, "recipe": None})


def mapping(help: str) -> Any:
    """Return a dataclass field that holds a read-only mapping, empty by default."""
    return dataclasses.field(default_factory=lambda: MappingProxyType({}), metadata={"help": help})


def section(kind: type) -> Any:
    """Return a dataclass field that holds a nested section."""
    return dataclasses.field(default_factory=kind, metadata={"help": kind.__doc__})


def within(value: Any, limits: Mapping[str, Any]) -> Any:
    """Return a value of the right type, or each entry of a tuple, as the limits of its field allow it; None as it is.

    Raises:
        ValueError: the text says what was expected.
    """
    if value is None:
        return None
    if isinstance(value, tuple):
        if limits.get("rising") and list(value) != sorted(value):
            raise ValueError("expected the smaller one first")
        return tuple(within(entry, limits) for entry in value)
    choices = {choice.lower(): choice for choice in limits.get("choices") or ()}
    if choices and value.lower() not in choices:
        near = choices | limits.get("meant", {})
        found = difflib.get_close_matches(value.lower(), near, n=1, cutoff=0.5)
        hint = f" (did you mean {near[found[0]]}?)" if found else ""
        raise ValueError(f"expected one of {', '.join(choices.values())}{hint}")
    for name, fails, words in (
        ("minimum", operator.lt, "at least"),
        ("above", operator.le, "more than"),
        ("maximum", operator.gt, "at most"),
        ("below", operator.ge, "less than"),
    ):
        bound = limits.get(name)
        if bound is not None and not isinstance(value, str) and fails(value, bound):
            raise ValueError(f"expected {words} {bound}")
    return choices[value.lower()] if choices else value


def chosen(
    names: tuple[str, ...], choices: tuple[str, ...], option: str, meant: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the names of a tool's option, each once, spelt as the choices are: it takes what a configuration takes.

    Raises:
        UserError: one that is no choice.
    """
    found = []
    for name in names:
        try:
            found.append(within(name, {"choices": choices, "meant": meant}))
        except ValueError as error:
            raise UserError(f"{option}: {error}, found {name!r}") from None
    return tuple(dict.fromkeys(found))
