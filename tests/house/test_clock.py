"""Durations are taken from a clock that nobody sets."""

import ast

import pytest

from tests.helpers.model_zoo import PACKAGE, ROOT

FILES = [path for folder in (PACKAGE, ROOT / "tools") for path in folder.rglob("*.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_duration_comes_from_the_time_of_day(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    wrong = [node.lineno for node in calls if isinstance(node.value, ast.Name)
             and (node.value.id, node.attr) in (("time", "time"), ("datetime", "now"))]  # fmt: skip
    assert wrong == []
