"""Shared code knows no family: none is named outside of their folders, but in docstrings and texts for people."""

import ast
import re

import pytest

from tests.helpers.model_zoo import FOLDERS, PACKAGE, ROOT

FAMILIES = re.compile(rf"\b({'|'.join(folder.name for folder in FOLDERS)})", re.IGNORECASE)
SHARED = [path for path in (*PACKAGE.glob("*.py"), *PACKAGE.glob("[a-z]*/**/*.py"))
          if "tools" not in path.relative_to(PACKAGE).parts]  # fmt: skip
SHARED = sorted([*(ROOT / "tools").rglob("*.py"), *SHARED])
EXAMPLES = {
    "tools/benchmark.py": {"vit_base_patch16_224"},  # measured when nobody says what
    "tools/parallel_cost.py": {"ViT-B/16", "ViT-L/16"},  # the sizes of the tables in docs/distributed.md
    "tools/version_matrix.py": {"ViT"},  # any entry point will do
}


def names_in(path):
    """Yield the identifiers and texts of a file's code, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if " " not in node.value:  # a help text or an error otherwise
                yield node.value
        elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef):
            yield getattr(node, "id", None) or node.name
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.alias):
            yield node.name


@pytest.mark.parametrize("path", SHARED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_code_names_no_family(path):
    allowed = EXAMPLES.get(str(path.relative_to(ROOT)), ())
    named = {text for text in names_in(path) if FAMILIES.search(text) and text not in allowed}
    assert not named
