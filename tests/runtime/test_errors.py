"""What reaches a terminal: one line, printable, short, whatever a file put into it."""

import pytest

from image_classification.runtime import UserError
from image_classification.runtime.errors import LONGEST


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x07\x00", r"\x1b[2J\x07\x00"),
        ("\u202egnp", r"\u202egnp"),
        ("half \ud800", r"half \ud800"),
        ("ä 猫 😀", "ä 猫 😀"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert str(UserError(text)) == shown


@pytest.mark.parametrize("char", ["x", "\x00", "\ud800"])
def test_long_message_keeps_its_beginning_and_its_end(char):
    text = str(UserError(f"begin {char * 30_000_000} end"))
    assert text.startswith("begin ") and text.endswith(" end") and len(text) <= LONGEST + 5
