"""Modules stay small enough to be one idea each, and say which one."""

import ast
import re

import pytest

from tests.helpers.model_zoo import PACKAGE, ROOT

FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tools").glob("*.py")])
LIMIT = int(re.search(r"none above (\d+)", (ROOT / "CONTRIBUTING.md").read_text())[1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_one_idea_and_says_which(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LIMIT, "split it by idea"
    assert path.stem not in ("utils", "util", "helpers", "common", "misc")
    assert not text or ast.get_docstring(ast.parse(text)), "no docstring"
