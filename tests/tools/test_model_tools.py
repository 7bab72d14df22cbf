"""What several of the tools that are given a model and its weights have in common."""

import re
from pathlib import Path

import pytest

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
    assert error.startswith("error: gone.txt: cannot be read") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
