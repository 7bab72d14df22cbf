"""docs/amp.md tells the truth: its Python runs, its tables are those of the code."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from image_classification import amp
from image_classification.amp import lists
from image_classification.amp.options import ALIASES, TABLE
from image_classification.amp.scaler import RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs/amp.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def rows(header):
    """Return the cells of the table whose first line begins with `header`."""
    table = PAGE[PAGE.index(f"\n| {header}") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_of_the_page_runs(block):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "docs/amp.md", "exec"), {})
    assert printed.getvalue()


def test_three_lines_print_applied_steps():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(BLOCKS[0], "docs/amp.md", "exec"), {})
    assert printed.getvalue().split() == ["True"] * 3


def number(text):
    base, _, exponent = text.partition("^")
    return None if text == "-" else float(base) ** float(exponent or 1)


def test_scaler_table_has_the_numbers_of_the_rules():
    found = {row[0].strip("`"): row[1:] for row in rows("rule")}
    assert set(found) == set(RULES)
    anew = {"growth": "growth only", "clean": "each clean step", "reset": "each clean step and each back-off"}
    for name, (init, growth, backoff, interval, patience, refill, low, high) in found.items():
        rule = RULES[name]
        assert refill == anew[rule.refill], name
        numbers = (rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval, rule.hysteresis)
        assert numbers == tuple(map(number, (init, growth, backoff, interval, patience))), name
        assert (rule.min_scale, rule.max_scale) == (number(low), number(high)), name


def test_option_table_names_every_option_of_every_mode():
    named = {name for row in rows("option") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {name for mode in TABLE.values() for name in mode.options}
    for alias in ALIASES:
        assert re.search(rf"\b{alias}\b", PAGE) or alias == "patch_functions", alias


def test_list_table_names_every_operator_that_is_added():
    named = {name for row in rows("operators") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(lists.MISSING_WHITE | lists.MISSING_BLACK)


def test_mode_tables_are_those_of_the_code():
    assert [row[0].strip("`") for row in rows("mode | weights")] == list(amp.MODES)
    assert amp.support_table() in PAGE
