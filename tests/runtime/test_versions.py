"""What the project does not run on is refused in one line, by every entry point and tool, before any work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from image_classification.runtime import versions

ROOT = Path(__file__).resolve().parents[2]
# Those of other projects' environments have no Paddle, or PaddleClas's.
OF_OTHERS = re.compile(r"^ *(?:import|from) (?:torch|torch_peers|ppcls)\b", re.MULTILINE)
FILES = [*sorted((ROOT / "tools").glob("*.py")), *sorted((ROOT / "image_classification").glob("*/main_*.py"))]
TEXTS = {path: path.read_text() for path in FILES}
PROGRAMS = [path for path, text in TEXTS.items() if "__main__" in text and not OF_OTHERS.search(text)]
NEEDED = "this project needs Paddle >=3.3.1,<3.4: see Start in the README"


def install(folder, name, version):
    """Write the metadata that `pip install name==version` leaves."""
    path = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    path.mkdir()
    (path / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_program_refuses_the_gpu_paddle_of_the_package_index(program, tmp_path):
    install(tmp_path, "paddlepaddle-gpu", "2.6.2")
    done = subprocess.run(
        [sys.executable, program, "-h"],
        cwd=program.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    words = f"error: paddlepaddle-gpu 2.6.2 is not supported; {NEEDED}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


@pytest.mark.parametrize(
    "version", ["2.6.2", "3.2.2", "3.3", "3.3.0rc1", "3.3.0", "3.4.0", "3.4.0.dev20260101", "4.0", "0.0.0", "develop"]
)
def test_paddle_outside_the_range_is_named_with_its_version(version, tmp_path, monkeypatch):
    install(tmp_path, "paddlepaddle", version)
    monkeypatch.syspath_prepend(tmp_path)
    assert versions.unsupported().startswith(f"paddlepaddle {version} is not supported")


@pytest.mark.parametrize("version", ["3.3.1", "3.3.1.post1", "3.3.2rc1", "3.3.1+cpu", "3.3.10"])
def test_paddle_of_the_range_is_taken_from_either_distribution(version, tmp_path, monkeypatch):
    for name in versions.DISTRIBUTIONS:
        install(tmp_path, name, version)
    monkeypatch.syspath_prepend(tmp_path)
    assert versions.installed_paddles() == dict.fromkeys(versions.DISTRIBUTIONS, version)
    assert versions.unsupported(needs_paddle=True) is None


@pytest.mark.parametrize("python", [(3, 9, 18), (3, 13, 0), (4, 0, 0)])
def test_python_outside_the_range_is_named_with_its_version(python, monkeypatch):
    monkeypatch.setattr(sys, "version_info", python)
    words = f"Python {'.'.join(map(str, python))} is not supported; this project needs Python >=3.10,<3.13"
    assert versions.unsupported() == words


def test_missing_paddle_is_one_line():
    """A Python without any package: -I -S leave site-packages out."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom image_classification.runtime import prepare_process"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{program}\nprepare_process()"], capture_output=True, text=True
    )
    words = f"error: Paddle is not installed; {NEEDED}\n"
    assert (done.returncode, done.stderr) == (2, words)


def test_readme_and_metadata_state_the_same_ranges():
    python, paddle = versions.specifier(versions.PYTHONS), versions.specifier(versions.PADDLES)
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = "{python}"' in project and f'"paddlepaddle{paddle}"' in project
    readme = (ROOT / "README.md").read_text()
    assert f"Python `{python}`" in readme and f"Paddle `{paddle}`" in readme
    assert f"paddlepaddle-gpu{paddle}" in (ROOT / "requirements-gpu.txt").read_text()
    pinned = re.search(r"^paddlepaddle==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert versions.is_within(versions.numbers(pinned[1]), versions.PADDLES)
