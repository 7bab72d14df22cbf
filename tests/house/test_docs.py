"""Every command that the README and the docs show: it runs, or, where it needs what is not here, it is accepted.

A command is a line of a ```shell block. Measurements take too long: their options are checked. Commands
that name a data set under /dataset are resolved with the real configuration loader only. make targets must exist. The
others are run as they stand, from the folder that the page says, with the results sent to a temporary folder.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from image_classification.config import load_config, preview_config
from tests.helpers.model_zoo import builder

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "image_classification").glob("*/README.md"))
MEASURED = ("benchmarks.md", "formats.md", "any_model.md")  # takes minutes to hours
NOT_HERE = ("/dataset/", "<", "...", "--nnodes", "srun", "mpirun", "-pretrained=timm", "-pretrained=torchvision")


def commands():
    """Yield (page, number of the block, folder, commands of the block that belong together)."""
    for page in PAGES:
        blocks = re.findall(r"```shell\n(.*?)```", page.read_text(), re.DOTALL)
        for number, block in enumerate(blocks):
            lines = block.replace("\\\n", " ").splitlines()
            lines = [line.split(" #")[0].strip().removeprefix("$ ") for line in lines]
            yield page.relative_to(ROOT), number, [line for line in lines if line and not line.startswith("#")]


BLOCKS = list(commands())


def check_configuration(folder, words):
    """Resolve the command's configuration as the entry point would, without data, weights or devices."""
    words = words[words.index(next(word for word in words if word.startswith("main_"))) + 1 :]
    sys.path.insert(0, str(ROOT))
    here = os.getcwd()
    os.chdir(folder)
    try:
        load_config(words, builder(folder))
    finally:
        os.chdir(here)


def check_options(words):
    """Every option of a tool's command is one that its -h names."""
    done = subprocess.run([sys.executable, words[1], "-h"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    options = set(re.findall(r"(?<![\w-])-[\w-]+", done.stdout))
    for word in words[2:]:
        if word.startswith("-"):
            name = word.partition("=")[0].lstrip("-").replace("-", "_")
            assert f"-{name}" in options, f"{words[1]} has no {word}"
            written = word.partition("=")[2] if name in ("json", "plot", "report") else ""
            assert not (written and (ROOT / written).exists()), f"{word}: exists, and is refused"


@pytest.mark.parametrize(("page", "number", "lines"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_documented_commands_work(page, number, lines, tmp_path):
    folder = ROOT
    for line in lines:
        words = shlex.split(line)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]  # VARIABLE=value in front of a command
        if words[0] == "cd":
            folder = (folder / words[1]).resolve()
            assert folder.is_dir(), line
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif page.name in MEASURED and words[1].startswith(("tools/", "examples/")):
            check_options(words)
        elif "photos" in line and page.name == "README.md":
            assert (ROOT / words[1]).is_file()  # tests/house/test_own_photographs.py runs them
        elif any(mark in line for mark in NOT_HERE):
            if any(word.startswith("main_") for word in words) and "<" not in line and "..." not in line:
                check_configuration(folder, words)
            else:
                assert words[0] in ("python", "srun", "mpirun", "bash", "sbatch"), line
        elif words[0] == "image-classification":
            if words[1] == "train":  # tests/house/test_installed.py does
                preview_config(words[2:])
            else:
                run(["python", "-m", "image_classification", *words[1:]], ROOT, line)
        elif words[0] == "python" and words[1].startswith("main_"):
            words = [word.replace("=/tmp/", f"={tmp_path}/") for word in words]
            if not any("num_epochs" in word or "-eval" in word for word in words):
                words += ["-num_epochs=1"]  # the accuracy of the whole run is that of tests/parallel/test_launch.py
            if not any(word.startswith(("-output", "--output")) for word in words):
                words += ["-opts", f"SAVE={tmp_path}"]
            run(words, folder, line)
        elif words[0] == "python" and words[1].startswith("tools/") and folder == ROOT:
            run([word.replace("=/tmp/", f"={tmp_path}/") for word in words], folder, line)
        elif words[0] == "python" and words[1:3] == ["-m", "paddle.distributed.launch"]:
            assert any(word.startswith("main_multi_gpu") for word in words), line
        else:
            assert words[0] in ("pip", "git", "ln", "visualdl"), f"{page}: no rule for {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_rows_of_a_table_have_as_many_cells_as_its_header(page):
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        header, *rows = table.splitlines()
        for row in rows:
            assert len(re.findall(r"(?<!\\)\|", row)) == len(re.findall(r"(?<!\\)\|", header)), row


def test_library_example_of_the_readme_works():
    """On a model that fits into the test, with fresh weights."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(example.replace("vit_base_patch16_224", "vit_tiny_digits").replace("pretrained=True, num", "num"), names)
    assert names["model"].training and names["model"].head.bias.shape == [5]
    assert names["prepare"](np.zeros((9, 9, 3), np.uint8)).dtype == np.float32


def run(words, folder, line):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    for page in PAGES:
        for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]*))?\)", page.read_text()):
            if "://" not in target:
                found = page.parent / target if target else page
                assert found.exists() and (not anchor or anchor in anchors(found)), f"{page.name}: {target}#{anchor}"
