"""tools/check_kernels.py: what it reads and writes; tests/device/test_kernels.py has what it says of a device."""

import json

import pytest

from image_classification.runtime import kernel_registry
from tools import check_kernels


def test_registry_that_was_written_is_read_as_it_was_and_not_written_over(tmp_path, capsys):
    path = tmp_path / "registry.json"
    assert check_kernels.main([f"-dump={path}"]) == 0
    assert check_kernels.read_registry(path) == kernel_registry()
    path.write_text("mine")
    assert check_kernels.main([f"-dump={path}"]) == 2
    assert path.read_text() == "mine" and "registry.json: exists; name another" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["text", "[]", json.dumps({"add": [["cpu"]]}), json.dumps({"add": 1})])
def test_file_that_is_no_registry_is_one_line(tmp_path, capsys, content):
    (tmp_path / "file").write_text(content)
    assert check_kernels.main(["-device=gpu", f"-registry={tmp_path / 'file'}"]) == 2
    assert capsys.readouterr().err.endswith("file: is no file that -dump wrote; name another\n")


def test_kernels_that_another_registry_lacks_are_named_and_the_command_fails(tmp_path, capsys, monkeypatch):
    needed, registry = tmp_path / "kernels.json", tmp_path / "registry.json"
    needed.write_text(json.dumps({"O2": {"add": ["float16", "float32"], "pow": ["float32"], "relu": ["float16"]}}))
    monkeypatch.setattr(check_kernels, "NEEDED", needed)
    found = {"add": [["gpu", "float16"], ["any", "float32"]], "pow": [["cpu", "float32"]]}
    registry.write_text(json.dumps(found))
    assert check_kernels.main(["-device=gpu", f"-registry={registry}"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "O2 on gpu: 4 kernels needed, 2 missing", "    pow float32: the CPU's runs instead",
        "    relu float16: none at all",
    ]  # fmt: skip
    registry.write_text(json.dumps(found | {"pow": [["gpu", "float32"]], "relu": [["gpu", "float16"]]}))
    assert check_kernels.main(["-device=gpu", f"-registry={registry}"]) == 0
