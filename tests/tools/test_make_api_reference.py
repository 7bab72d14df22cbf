"""The API reference builds without a warning, and every public name says what it is."""

import importlib

import pytest

from tools import make_api_reference


def test_reference_has_a_page_for_every_package(tmp_path, capsys):
    assert make_api_reference.main(["-output", str(tmp_path)]) == 0, capsys.readouterr().err
    pages = {path.relative_to(tmp_path).with_suffix("") for path in tmp_path.rglob("*.html")}
    names = [f"image_classification/{name.replace('.', '/')}" for name in make_api_reference.PACKAGES]
    assert set(map(str, pages)) == {"index", *names}
    assert "found_inf" in (tmp_path / "image_classification" / "amp.html").read_text()


@pytest.mark.parametrize("output", ["", __file__], ids=["empty", "file"])
def test_folder_that_is_none_is_refused_and_nothing_written(output, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_api_reference.main([f"-output={output}"]) == 2
    assert "-output: " in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_folder_that_holds_something_is_refused(tmp_path, capsys):
    (tmp_path / "index.html").touch()
    assert make_api_reference.main([f"-output={tmp_path}"]) == 2
    assert "is a folder that is not empty" in capsys.readouterr().err and not (tmp_path / "index.html").read_bytes()


SILENT = '''
"""A module."""

LIMIT = 1


def shout(x):
    return x


class Loud:
    """Says something."""

    def shout(self):
        return self

    def _whisper(self):
        return self
'''


def test_name_that_says_nothing_is_found(tmp_path, monkeypatch):
    (tmp_path / "silent.py").write_text(SILENT)
    monkeypatch.syspath_prepend(tmp_path)
    assert make_api_reference.without_docstring(importlib.import_module("silent")) == ["shout", "Loud.shout"]
