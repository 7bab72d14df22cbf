"""Turning what a YAML file or a command line says into a value of the type that the schema asks for."""

import contextlib
import math
import re
import reprlib
import types
import typing
from typing import Any, TypeAlias

# Control characters, halves of characters (names of files that are not UTF-8), and what turns the direction of writing.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LARGEST = 1 << 63

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 3, 200, 200

Annotation: TypeAlias = Any  # what stands behind the colon of a field: a class, a union or a generic alias


def convert(value: object, kind: Annotation) -> Any:
    """Return ``value`` as the annotated type ``kind``.

    YAML reads ``3e-3``, ``1.50`` and ``(0.9, 0.999)`` as strings: here a string that is a number is a number where a
    number is expected. An int is a float where a float is expected, never the other way round.

    Raises:
        ValueError: the text says what was expected.
    """
    origin: Any = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, typing.get_args(kind))
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(kind))
    if kind is bool:
        return _convert_bool(value)
    if kind is int:
        return _convert_int(value)
    if kind is float:
        return _convert_float(value)
    if kind is str:
        if isinstance(value, str) and UNPRINTABLE.search(value):
            raise ValueError("expected a text without control characters, in UTF-8")
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    elif kind is typing.Any:
        return as_numbers(value)
    raise ValueError(f"expected {name_of(kind)}")


def as_numbers(value: Any) -> Any:
    """Return a text that is a number as one, also in lists and mappings, where nobody says what is expected: 1e3. In a
    list a text that YAML would have read as a whole number stood in quotes, and is the name of a layer or a class."""
    if isinstance(value, dict):
        return {key: as_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [entry if isinstance(entry, str) and entry.isdecimal() else as_numbers(entry) for entry in value]
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            return convert(value, kind)
    return value


def shown(value: object) -> str:
    """Return a value for a message, however large or deep it is."""
    return _short.repr(value)


def name_of(kind: Annotation) -> str:
    """Return how the type is called in a message to the user."""
    origin: Any = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(name_of(part) for part in typing.get_args(kind))
    if kind is types.NoneType:
        return "none"
    if origin is tuple:
        parts = typing.get_args(kind)
        count = "" if Ellipsis in parts else f"{len(parts)} "
        return f"a list of {count}{name_of(parts[0])}s".replace(" a ", " ", 1).replace(" an ", " ")
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    return names.get(kind, getattr(origin or kind, "__name__", str(kind)))


def _convert_union(value: object, kinds: tuple[Annotation, ...]) -> Any:
    is_none = value is None or (isinstance(value, str) and value.lower() in ("none", "null", ""))
    if types.NoneType in kinds and is_none:
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    exact = tuple(kind for kind in kinds if type(value) is kind)
    for kind in exact + kinds:
        try:
            return convert(value, kind)
        except ValueError:
            continue
    raise ValueError(f"expected {' or '.join(name_of(kind) for kind in kinds)}")


def _convert_tuple(value: object, kinds: tuple[Annotation, ...]) -> tuple:
    expected = f"expected {name_of(types.GenericAlias(tuple, kinds))}"
    if isinstance(value, str):  # (0.9, 0.999)
        parts = value.strip().removeprefix("(").removeprefix("[").removesuffix(")").removesuffix("]").split(",")
        value = [part.strip().strip("'\"") for part in parts if part.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError(expected)
    if Ellipsis in kinds:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise ValueError(f"expected {len(kinds)} values")
    try:
        return tuple(convert(part, kind) for part, kind in zip(value, kinds, strict=True))
    except ValueError:
        raise ValueError(expected) from None


def _convert_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("expected true or false")


def _convert_int(value: object) -> int:
    if isinstance(value, str):
        text, value = value, None
        for base in (0, 10):  # 0x10 and 0b10 say theirs; 010 is ten
            with contextlib.suppress(ValueError):
                value = int(text, base)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < LARGEST:
            return value
        raise ValueError("expected an integer of at most 63 bits")
    raise ValueError("expected an integer")


def _convert_float(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        return float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError("expected a number" + (" that is finite" if isinstance(value, int | float) else ""))
