"""The YAML files that the project brings, by name: each family's variants, and what they share in configs/.

Knows no Paddle, so that a command answers a wrong name at once. The folders are read once in a process.
"""

import ast
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.plain import read_text
from ..runtime import UserError, close_names

PACKAGE = Path(__file__).resolve().parents[1]
WEIGHTS = (".pdparams", ".safetensors", ".pth", ".pt", ".bin")  # how the names of files of weights end


@functools.cache
def model_folders() -> dict[str, Path]:
    """Return {folder's name: its path}, sorted: every folder of the package with an entry point."""
    return {path.parent.name: path.parent for path in sorted(PACKAGE.glob("*/main_single_gpu.py"))}


@functools.cache
def variants() -> dict[str, Path]:
    """Return {variant: path of its YAML} over all families."""
    return {path.stem: path for folder in model_folders().values() for path in sorted(folder.glob("configs/*.yaml"))}


@functools.cache
def shared() -> dict[str, Path]:
    """Return {name: path} of the recipes, the data sets and the precision modes in configs/."""
    return {path.stem: path for path in sorted(PACKAGE.glob("configs/*/*.yaml"))}


def find_yaml(name: str, beside: Path | None = None, what: str = "-cfg") -> Path:
    """Return the path of a YAML: a file (relative to the folder `beside`), a run's folder, or a name of the project's.

    Raises:
        UserError: there is no such file, and none of that name; the nearest name is given.
    """
    path = Path(name) if beside is None else beside / name
    if path.suffix in WEIGHTS:
        raise UserError(f"{what}: {path}: holds weights: a model or its YAML stands here, weights are pretrained")
    if os.path.isfile(path):  # pathlib's raises where a name is too long
        return path
    known = variants() | shared()
    if name in known:
        return known[name]
    if beside is None and os.path.isdir(path):
        if os.path.isfile(path / "config.yaml"):
            return path / "config.yaml"
        raise UserError(f"{what}: {path}: is a folder without config.yaml, which a run leaves")
    if beside is not None and os.path.exists(path):  # who reads it says why it cannot be
        return path
    typed = Path(name).stem
    family = family_of(typed)
    if os.path.isfile(f"{path}.yaml"):
        raise UserError(f"{what}: {path}: no such file; did you mean {path}.yaml?")
    near = [full for full in known if full.startswith(typed.lower())] or close_names(typed, known)
    hint = f"did you mean {near[0]}?" if near else "tools/list_models.py lists the models"
    if family is not None and path.suffix not in ("", ".yaml"):
        hint = f"did you mean {typed}? {path.suffix[1:]} is the name of weights, which -pretrained takes"
    if family is not None and path.suffix == ".yaml":
        hint = f"did you mean {typed}? Its program is in image_classification/{family}"
    raise UserError(f"{what}: {path}: no such file, and no model or recipe of that name; {hint}")


def name_of(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> str | None:
    """Return MODEL.NAME of a YAML's layers, the last one that is given."""
    sections = [layer["MODEL"] for _, layer in layers if isinstance(layer.get("MODEL"), dict)]
    return next((section["NAME"] for section in reversed(sections) if section.get("NAME")), None)


def family_of(name: str | None) -> str | None:
    """Return the model folder that a variant belongs to, None for a name that is none."""
    path = variants().get(str(name))
    return None if path is None else path.parents[1].name


def signature_of(family: str) -> Callable[..., None]:
    """Return a function that takes what a family's `build_model` takes, without importing the family, and so Paddle."""
    source = PACKAGE / family / f"{family.lower()}.py"
    function = _build_model(ast.parse(read_text(source)))
    function.name, function.body, function.returns, function.decorator_list = "build_model", [ast.Pass()], None, []
    arguments = function.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]  # the annotation has the type
    names: dict[str, Any] = {"__name__": module_of(family)}
    module = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
    exec(compile(module, str(source), "exec"), names)
    stub: Callable[..., None] = names["build_model"]
    return stub


def _build_model(tree: ast.Module) -> ast.FunctionDef:
    """Return the function `build_model` of a family's source, or where that is its model's class, the constructor."""
    known: dict[str, Any] = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    others = (node for node in tree.body if isinstance(node, ast.Assign))
    known |= {ast.unparse(node.targets[0]): known.get(ast.unparse(node.value)) for node in others}
    found: ast.FunctionDef | ast.ClassDef = known["build_model"]
    if isinstance(found, ast.ClassDef):
        (found,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
        del found.args.args[0]
    return found


def module_of(family: str) -> str:
    """Return the name of the module with a family's `build_model`."""
    return f"image_classification.{family}.{family.lower()}"
