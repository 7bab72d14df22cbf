"""Which Python and which Paddle this project runs on; what else is installed is refused by name and version."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

# From, included, and to, excluded: what `make test-matrix` passes. Paddle 3.3.0 is the first that calls a layer's hooks
# after an error too and hands out one object per dtype, 3.3.1 the first with the operator of a whole linear layer that
# the lists of the precision modes name.
PYTHONS = ((3, 10), (3, 13))
PADDLES = ((3, 3, 1), (3, 4))
DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu")


def refuse_unsupported(needs_paddle: bool = False) -> None:
    """End the process with one line and exit code 2 where Python or an installed Paddle is not supported.

    Imports nothing of the project, which an old Python does not understand, and no Paddle: an old one would end in an
    error about the first name that it lacks.
    """
    complaint = unsupported(needs_paddle)
    if complaint is not None:
        print(f"error: {complaint}", file=sys.stderr, flush=True)
        sys.exit(2)


def unsupported(needs_paddle: bool = False) -> str | None:
    """Return what is wrong with the Python that runs or the Paddle that is installed, None when nothing is."""
    python = sys.version_info[:3]
    if not is_within(python, PYTHONS):
        return f"Python {_text(python)} is not supported; this project needs Python {specifier(PYTHONS)}"
    needed = f"this project needs Paddle {specifier(PADDLES)}: see Start in the README"
    for name, version in installed_paddles().items():
        if not is_within(numbers(version), PADDLES):
            return f"{name} {version} is not supported; {needed}"
    if needs_paddle and find_spec("paddle") is None:
        return f"Paddle is not installed; {needed}"
    return None


def installed_paddles() -> dict[str, str]:
    """Return {name: version} of the installed distributions of Paddle, as their metadata says."""
    from importlib import metadata  # Python 3.7 has none

    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, none of what is no version."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(map(int, found.groups("0"))) if found else ()


def is_within(version: tuple[int, ...], limits: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Return whether a version lies between two limits, the second excluded."""
    return limits[0] <= version < limits[1]


def specifier(limits: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Return two limits as pip spells them."""
    return f">={_text(limits[0])},<{_text(limits[1])}"


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
