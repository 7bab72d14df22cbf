"""What a user did wrong, as one line."""

from collections.abc import Sequence

LONGEST = 1000  # characters of a message; a file decides how long the names in it are
KEPT_END = 300


class UserError(ValueError):
    """What a user typed or gave is wrong; the text is one line that names it and says what is allowed.

    Whatever a file put into the text, it is printable, so that a terminal shows it and obeys nothing, and short.
    """

    def __init__(self, text: object) -> None:
        super().__init__(one_line(str(text)))


def first_line(error: object) -> str:
    """Return what the text of an allocation that failed says first."""
    return next(filter(str.strip, str(error).splitlines()), "an allocation failed")


def one_line(text: str) -> str:
    """Return the text with everything escaped that is not printable, and its middle left out where it is long."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in _short(text))
    return _short(text)


def some_of(names: Sequence[object], most: int = 5) -> str:
    """Return the first names as text, and how many more there are: a message stays a line."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - KEPT_END]} ... {text[-KEPT_END:]}"
