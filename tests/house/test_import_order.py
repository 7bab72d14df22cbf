"""The house keeps its order: a module imports only what stands to its left in docs/design.md."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "image_classification"
MODELS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0].isupper())
PAGE = (PACKAGE.parent / "docs/design.md").read_text()


def order():
    """Return the parts of the package from the left to the right of the page, those of one place together."""
    (block,) = re.findall(r"```\n(runtime < .*?)```", PAGE, re.DOTALL)
    places = [part.replace(",", " ").split() for part in block.split("<")]
    return [MODELS if names == ["{models}"] else [name for name in names if "." not in name] for names in places]


PLACE = {name: place for place, names in enumerate(order()) for name in names}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


def imported_parts(path):
    """Yield the top-level parts of the package that a file imports, in any spelling."""
    package = ("image_classification", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*start, *filter(None, [node.module])))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "image_classification" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_from_its_left(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in PLACE, f"{own} has no place in the order of docs/design.md"
    if path.name.startswith("main_"):
        return
    for part in imported_parts(path):
        assert part == own or PLACE[part] < PLACE[own], f"{own} must not import {part}"


def test_table_of_the_page_names_each_part_of_the_package():
    cells = "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    named = set(re.findall(r"`(?:image_classification/)?(\w+)(?:\.py)?/?`", cells))
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {*MODELS} <= named


def test_paddle_amp_is_named_in_amp_alone():
    """Everyone else asks a Precision."""
    for path in FILES:
        if "amp" not in path.relative_to(PACKAGE).parts[0]:
            tree = ast.parse(path.read_text())
            attributes = [
                ast.unparse(node)
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("paddle.amp")
            ]
            assert not attributes, f"{path}: {attributes}"


@pytest.mark.parametrize("part", ["runtime", "files", "config", "data"])
def test_modules_that_know_no_paddle_do_not_import_it_at_the_top(part):
    paths = [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else (PACKAGE / part).rglob("*.py")
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            assert "paddle" not in ast.unparse(node).split("#")[0].split("\n")[0] or not isinstance(
                node, ast.Import | ast.ImportFrom
            ), path
