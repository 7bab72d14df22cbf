"""In which keys two configurations differ."""

from typing import Any

from .dialect import flattened
from .schema import Config
from .values import as_numbers
from .written import plain

# What may be another on each machine: where the data are and how they are fetched, where the results go. And which keys
# were typed, which says nothing of their values.
OF_MACHINE = ("DATA.DATA_PATH", "DATA.DOWNLOAD", "DATA.NUM_WORKERS", "DATA.PREFETCH", "DATA.WORKER_TIMEOUT", "SAVE",
              "DATA.PREPROCESSING_KEPT")  # fmt: skip
LONGEST = 80  # characters of a value


def recipe_of(config: Config) -> dict[str, Any]:
    """Return {dotted key: value} of a recipe, without what may be another on each machine."""
    return without_machine(flat(plain(config, recipe=True)))


def without_machine(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in OF_MACHINE}


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return {dotted key: value} of nested values; a section without keys is none."""
    return {key: value for key, value in flattened(values) if value != {}}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (key, value before, value now) as text, of those that differ in what :func:`flat` returned.

    A key of the schema that `before` has not is of a version that did not know it, and is not compared.
    """
    default = flat(plain(Config(), recipe=True))
    before, now = ({key: as_numbers(value) for key, value in values.items()} for values in (before, now))
    keys = [key for key in now | before if key in before or key not in default]
    return [(key, _text(before, key), _text(now, key)) for key in keys
            if key not in before or key not in now or before[key] != now[key]]  # fmt: skip


def _text(values: dict[str, Any], key: str) -> str:
    text = str(values[key]) if key in values else "not set"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
