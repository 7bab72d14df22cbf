"""Every command explains itself and answers a typing mistake before anything slow begins.

What is slow is an import of Paddle, 1.5 s, or of what draws figures, 0.4 s; most answers take 0.15 s.
"""

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest

from image_classification.__main__ import TOOLS, TRAINING
from image_classification.runtime import Parser, UserError
from tests.helpers.model_zoo import FOLDERS, ROOT

PROGRAMS = sorted([*(ROOT / "tools").glob("*.py"), *(path for folder in FOLDERS for path in folder.glob("main_*.py"))])
SLOW = {"paddle", "matplotlib", "onnx"}
FIRST = FOLDERS[0]
VARIANT = f"{FIRST.name.lower()}_tiny_digits"
OTHER = FOLDERS[-1]
MAIN = "image_classification/{}/main_single_gpu.py"


def answer(*words, cwd=ROOT):
    """Return (exit code, the slow modules that were imported, standard output, standard error) of a Python program."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    lines = done.stderr.splitlines(keepends=True)
    imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    said = "".join(line for line in lines if not line.startswith("import time:"))
    assert "encodings" in imported
    return done.returncode, SLOW & imported, done.stdout, said


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_help_is_there_at_once(path):
    code, slow, out, err = answer(path, "-h")
    assert (code, err) == (0, "") and out.startswith("usage:")
    assert not slow


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.stem)
def test_help_has_the_default_of_every_option(path, monkeypatch):
    helps = {}

    def look(parser, words=None):
        formatter = parser._get_formatter()
        shown = [action for action in parser._actions if action.default not in (None, False, [], (), argparse.SUPPRESS)]
        helps.update({tuple(action.option_strings): formatter._expand_help(action) for action in shown})
        raise UserError("seen")

    monkeypatch.setattr(Parser, "parse_args", look)
    importlib.import_module(f"image_classification.tools.{path.stem}").main([])
    assert [flags for flags, text in helps.items() if "default: " not in text] == []


def test_help_of_the_one_command_names_the_others_and_each_of_them_has_one():
    code, slow, out, _ = answer("-m", "image_classification", "-h")
    assert code == 0 and not slow
    assert re.findall(r"^  (\w+)  ", out, re.MULTILINE) == [*TRAINING, *TOOLS]
    code, slow, out, _ = answer("-m", "image_classification", "train", "--help")
    assert code == 0 and not slow and out.startswith("usage: image-classification train ")


def test_every_program_of_the_readme_is_one_of_these():
    blocks = re.findall(r"```shell\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    folder, seen = ROOT, 0
    for line in "\n".join(blocks).splitlines():
        words = shlex.split(line) or [""]
        if words[0] == "cd":
            folder = ROOT / words[1]
        elif words[0] == "python" and words[1] != "-m":
            place = ROOT if words[1].startswith(("tools/", "image_classification/")) else folder
            assert place / words[1] in PROGRAMS, line
            seen += 1
        elif words[0] == "image-classification":
            assert words[1] in (*TRAINING, *TOOLS), line
    assert seen > 10


@pytest.mark.parametrize(("words", "expected"), [
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-lrr=1"], "unknown argument '-lrr=1'; did you mean -lr?"),
    ([MAIN.format(FIRST.name), f"--cfg={VARIANT[:-1]}"], f"did you mean {VARIANT}?"),
    ([MAIN.format(OTHER.name), "-cfg", VARIANT], f"{VARIANT} belongs to {FIRST.name}: its program is in "
                                                 f"image_classification/{FIRST.name}"),
    ([MAIN.format(OTHER.name), f"-cfg=./configs/{VARIANT}.yaml"], f"did you mean {VARIANT}? Its program is in "),
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-opts", "MODEL.DROPUOT=0.1"], "did you mean MODEL.DROPOUT?"),
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-opts", "TRAIN.BASELR=1"], "did you mean TRAIN.BASE_LR?"),
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-lr=fast"], "TRAIN.BASE_LR: expected"),
    (["tools/predict.py", f"--cfg={VARIANT}x", "-pretrained=x", "y"], f"did you mean {VARIANT}?"),
    (["tools/predict.py", VARIANT, "--top-kk=3", "-pretrained=x", "y"], "did you mean -top_k?"),
    (["tools/export.py", VARIANT, "--pretrained=x", "-output=y", "-opts", "MODEL.DROPUOT=1"], "did you mean MODEL."),
    (["tools/amp_doctor.py", f"-cfg={VARIANT}", "-steps=2", "-amp_mod=O2"], "did you mean -amp_mode?"),
    (["tools/amp_doctor.py", f"-cfg={VARIANT}", "-amp", "O2"], "unknown argument 'O2'; did you mean -amp_mode=O2?"),
    ([MAIN.format(FIRST.name), "-cfg=output/best.pdparams"], "best.pdparams: holds weights: a model or its YAML"),
    (["tools/prepare_dataset.py", "Digits", "x"], "dataset: digits: reads no folder: there is nothing to prepare"),
    (["tools/show_batch.py", "batch.png", f"-cfg={VARIANT}x"], f"did you mean {VARIANT}?"),
    (["tools/amp_doctor.py", f"-cfg={VARIANT}", "-step=2"], "unknown argument '-step=2'; did you mean -steps?"),
    (["tools/version_matrix.py", "-pythons", "3.1l"], "-pythons: '3.1l': expected a version such as 3.11"),
    (["tools/version_matrix.py", "-paddles", "latest"], "-paddles: 'latest': expected a version such as 3.3.1"),
    (["tools/version_matrix.py", "-cache="], "-cache: is empty"),
    (["tools/registry_from_timm.py", "x", "-results=gone.csv"], "gone.csv: cannot be read"),
    (["tools/registry_from_timm.py", "x", "-results=README.md"], "README.md:2: expected a name in column model"),
    (["tools/registry_from_timm.py", "x", "-results=x", "-as", "y"], "-as: y: expected TIMM=OURS"),
    (["tools/compare_precision.py", f"-cfg={VARIANT}x"], f"did you mean {VARIANT}?"),
    (["tools/benchmark.py", f"-cfg={VARIANT}x"], f"did you mean {VARIANT}?"),
    (["tools/benchmark.py", f"-cfg={VARIANT}", "-modes=fp16"], "(did you mean -dtypes?), found 'fp16'"),
    (["tools/compare_precision.py", f"-cfg={VARIANT}", "-dtypes=half"], "(did you mean float16?), found 'half'"),
    (["-m", "image_classification", "train", f"-cfg={VARIANT}", "-batchsize=3"], "did you mean -batch_size?"),
    (["-m", "image_classification", "predcit"], "did you mean predict?"),
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-data_path=my", "photos"], "a path with blanks needs quotes"),
    ([MAIN.format(FIRST.name), f"-cfg={VARIANT}", "-opts", "DATA.NUM_WORKERS=100000"], "expected at most 1024"),
    ([MAIN.format(FIRST.name).replace("single", "multi"), f"-cfg={VARIANT}", "-ngpus=10000"], "expected at most 1024"),
    ([MAIN.format(FIRST.name), "-cfg=docs"], "docs: is a folder without config.yaml"),
], ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else "")  # fmt: skip
def test_typing_mistake_is_one_line_before_paddle_is_imported(words, expected):
    code, slow, out, err = answer(*words)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert expected in err
    assert not slow
