"""A family that the scaffold began passes, in a copy of the repository, every test that finds families by itself."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.model_zoo import ROOT
from tools import new_family

TESTS = (
    "test_models.py",
    "tools/test_every_family.py",
    "parallel/test_families.py",
    "weights/test_load.py",
    "house/test_import_order.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return the folder of a copy of the repository with a family `Sample`."""
    folder = tmp_path_factory.mktemp("copy") / "zoo"
    for part in ("image_classification", "tools", "tests", "configs", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("output", "__pycache__"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, folder)
    before = {path for path in folder.rglob("*") if path.is_file()}
    done = run(folder, "tools/new_family.py", "Sample")
    new = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts} - before
    assert {path.relative_to(folder) for path in new} == set(map(type(folder), done.stdout.split()))
    return folder


def run(folder, *words):
    # no worker of this run's pytest-xdist: as one it would share folders with runs of before
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


def test_new_family_passes_the_linter_and_every_test_of_families(copy):
    run(copy, "-m", "ruff", "check", "image_classification/Sample")
    tests = [f"tests/{name}" for name in TESTS]
    chosen = "Sample or sample or entry_points"
    done = run(copy, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests, "-k", chosen)
    # a skip: nobody published weights of it
    assert re.search(r"\b[2-9]\d passed, [1-4] skipped", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [("None", "None: is a word of Python"), ("Class", "Class: is a word of Python"),
     ("Mlp", "of the file that is written"), ("VIT", "image_classification/ViT has the name but for the capitals"),
     ("Layers", "image_classification/layers.py has"),
     ("ConvNeXtV2", "there is a variant convnextv2_tiny_digits"), ("Token", "token.py would hide the module token"),
     ("Paddle", "hide the module paddle"), ("", "name: is empty"),
     ("regnet", "expected letters and digits that begin with a capital"), ("Reg-Net", "'Reg-Net'"),
     ("ResNet", "image_classification/ResNet/__init__.py exists already")],
)  # fmt: skip
def test_new_family_with_an_impossible_name_writes_nothing(name, message, capsys):
    before = set((ROOT / "image_classification").iterdir())
    assert new_family.main([name]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert set((ROOT / "image_classification").iterdir()) == before
