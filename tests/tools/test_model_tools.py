"""What several of the tools that are given a model and its weights have in common."""

import operator
import re
from pathlib import Path

import pytest

from image_classification.config import Config
from image_classification.config.unread import OF_WEIGHTS
from image_classification.weights.preprocessing import KEYS
from tests.helpers.model_tools import VARIANT, tool


@pytest.mark.parametrize("words", [("convert_weights", VARIANT, "weights", "there"),
                                   ("export", VARIANT, "-pretrained=weights", "-output=folder"),
                                   ("export", VARIANT, "-pretrained=weights", "-output=there")],
                         ids=["a file", "a folder", "a file for a folder"])  # fmt: skip
def test_tool_writes_over_nothing(weights, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for path in ("there", "folder/note.txt"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("mine")
    name, *arguments = [word.replace("weights", str(weights)) if "_" not in word else word for word in words]
    assert tool(name).main(arguments) == 2
    assert re.search("remove it first|there: is no folder", capsys.readouterr().err)
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"mine"}


@pytest.mark.parametrize("name", ["export", "predict"])
def test_class_file_that_is_missing_is_named_before_weights_are_read(name, tmp_path, capsys):
    words = [VARIANT, "-pretrained=gone.pdparams", "-output", str(tmp_path / "out"), "-class_names=gone.txt"]
    assert tool(name).main(words if name == "export" else [*words, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: -class_names: gone.txt: cannot be read") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["convert_weights", "export", "predict"])
@pytest.mark.parametrize("word", [
    "OUTPUT=out", "SAVE=out", "TRAIN.BASE_LR=0.1", "DATA.BATCH_SIZE=2", "DATA.NUM_WORKERS=1", "AMP.MODE=auto",
    "AMP=True", "MODEL.PRETRAINED=other.pdparams", "MODEL={TEACHER: other.pdparams}", "EVAL=True", "SEED=1",
    "DATA.DATA_PATH=photos", "AMP.DTYPE=float16", "EVAL_FP32=True", "DATA.CROP_PADDING=2",
])  # fmt: skip
def test_option_that_only_a_run_reads_is_refused_before_the_weights_are_looked_for(name, word, tmp_path, capsys):
    given = {"convert_weights": ["gone.pdparams", str(tmp_path / "w.pth")],
             "export": ["-pretrained=gone.pdparams", f"-output={tmp_path / 'out'}"],
             "predict": ["-pretrained=gone.pdparams", "gone.png"]}[name]  # fmt: skip
    assert tool(name).main([VARIANT, *given, "-opts", "MODEL.NUM_CLASSES=10", word]) == 2
    error, key = capsys.readouterr().err, word.partition("=")[0]
    assert error.startswith(f"error: command line -opts: {key}") and "this tool does not read it" in error
    assert error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_options_of_weights_are_all_that_belongs_to_published_ones():
    assert {f"DATA.{key}" for key in KEYS.values()} < set(OF_WEIGHTS)
    for key in OF_WEIGHTS:
        operator.attrgetter(key)(Config())
