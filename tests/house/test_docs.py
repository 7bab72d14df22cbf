"""Every command that the README and the docs show: it runs, or, where it needs what is not here, it is accepted.

A command is a line of a ```shell block. Measurements take too long: their options are checked. Commands
that name a data set under /dataset are resolved with the real configuration loader only. make targets must exist. The
others are run as they stand, from the folder that the page says, with the results sent to a temporary folder.
"""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.config import load_config, preview_config, schema
from tests.helpers.model_zoo import builder

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FAMILIES = sorted((ROOT / "image_classification").glob("*/README.md"))
PAGES += FAMILIES
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


PYTHON = [(page, number, block) for page in ("half_cpu", "any_model", "design") for number, block in
          enumerate(re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL))
          if not block.startswith("# train.py")]  # fmt: skip


@pytest.mark.parametrize(("page", "number", "block"), PYTHON, ids=[f"{page}-{number}" for page, number, _ in PYTHON])
def test_python_of_the_pages_runs(page, number, block):
    """In front of it stands what a script has: a model, a batch, a loss, an optimizer, a precision."""
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    images, labels = paddle.randn([2, 3, 8, 8]), paddle.to_tensor([0, 3])

    def build_optimizer(named):
        return paddle.optimizer.AdamW(1e-3, parameters=[param for _, param in named])

    names = {
        "paddle": paddle, "amp": amp, "half_cpu": half_cpu, "model": model, "network": model, "images": images,
        "inputs": images, "labels": labels, "precision": amp.build_precision("auto", "bfloat16"),
        "criterion": nn.CrossEntropyLoss(), "micro_batches": [(images, labels)] * 2,
        "batches": [images] * 4 if "for images in" in block else [(images, labels)] * 6,
        "build_optimizer": build_optimizer, "optimizer": build_optimizer(model.named_parameters()),
    }  # fmt: skip
    exec(compile(block, f"docs/{page}.md", "exec"), names)
    if "Float8" in names:
        with half_cpu.dispatch(names["Float8"](model[3])):
            names["loss"] = model(images.astype("bfloat16")).mean()
        names["loss"].backward()
    result = names["logits" if "logits" in names else "loss"]
    assert result.astype("float32").isfinite().all()


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


# What the pages name between backticks and no code does: of other projects and programs, and patterns of names.
FOREIGN = {
    "AMP_TYPE.PADDLE", "TRAIN.TEACHER_MODEL", "ResNet50.yaml", "config.py", "train.py", "utils.py", "validate.py",
    "Arch", "CoAtNet", "GLOO_SOCKET_IFNAME", "_LOCAL_RANK", "div_scale", "epoch_NNNN", "test_subject_condition_result",
}  # fmt: skip
OF_A_RUN = {"config.yaml", "invocation.yaml", "advice.yaml"}  # files that it leaves


def spans(page):
    """Return what stands between backticks outside of blocks, without what is a pattern."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    return [span for span in re.findall(r"`([^`]+)`", text) if not re.search(r"[*<>{]|\.\.\.|://", span)]


def keys_of(section, prefix=""):
    """Yield the keys of a section of the configuration, and of the sections in it."""
    for field in dataclasses.fields(section):
        inner = getattr(section, field.name)
        yield f"{prefix}{field.name}"
        yield from keys_of(inner, f"{prefix}{field.name}.") if dataclasses.is_dataclass(inner) else ()


@pytest.fixture(scope="module")
def repository():
    """Return (the names of files and folders, with any number of folders before them, the words of the code)."""
    tops = [ROOT / name for name in ("image_classification", "tools", "tests", "configs", "examples", "docs")]
    paths = [*ROOT.iterdir(), *(path for top in tops for path in top.rglob("*"))]
    code = [path for path in paths if path.suffix in (".py", ".cpp", ".cc", ".h", ".c", ".yaml", ".toml", ".sh")]
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(path.read_text() for path in [*code, ROOT / "Makefile"])))
    parts = [path.relative_to(ROOT).parts for path in paths]
    names = {"/".join(part[at:]) for part in parts for at in range(len(part))}
    return names, words | {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("page", PAGES[: -len(FAMILIES)], ids=lambda page: page.name)
def test_names_between_backticks_are_those_of_the_code(page, repository):
    names, words = repository
    keys = {*keys_of(schema.Config())}
    for path in re.findall(r"(?<![\w/.])(?:tests|tools|examples)/[\w/]+(?:\.\w+)?", page.read_text()):  # in blocks, too
        assert path.rstrip("/") in names, path
    for span in spans(page) if page.name != "mutations.md" else ():  # which is written by a tool
        for path in re.findall(r"(?<![\w$~/.])[\w/]+\.(?:py|cpp|h|c|sh|yaml)\b", span):
            assert path in names | FOREIGN | OF_A_RUN, span
        for key in re.findall(r"\b(?:DATA|TRAIN|PARALLEL|RUNTIME)\.[A-Z_.]*[A-Z]", span):
            assert key in keys | FOREIGN, span
        options = [option.replace("-", "_") for option in re.findall(r"(?<![\w-])--?([a-z][\w-]+)", span)]
        for word in [*options, *re.findall(r"(?<![\w/-])[A-Za-z_]\w+", span)]:
            assert word in words | FOREIGN, span


def test_page_of_half_precision_names_every_file_of_kernels():
    named = {span.removesuffix(".py") for span in spans(ROOT / "docs/half_cpu.md")}
    folder = ROOT / "image_classification/half_cpu"
    modules = [path.stem for path in folder.glob("*.py") if path.stem.startswith(("compiled_", "onednn_"))]
    assert {*modules, *(path.name for path in (folder / "cpp").iterdir())} - named == set()
