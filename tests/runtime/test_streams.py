"""Standard streams that were closed, are full, or know no letters but English ones."""

import io
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from image_classification import launch
from image_classification.parallel import entry
from image_classification.runtime import UserError, command
from tests.helpers.entry import PACKAGE

ROOT = PACKAGE.parent
TALKS = """
from image_classification import runtime
runtime.open_missing_streams()
import sys
file = open(sys.argv[1], "w")
runtime.setup_logger(sys.argv[2])
for word in ("one", "tw\u00f6", "three"):
    runtime.get_logger().info(word)
file.write(str(file.fileno() > 2))
"""


def talk(tmp_path, redirection, **environment):
    words = [sys.executable, "-c", TALKS, str(tmp_path / "file"), str(tmp_path)]
    command = ["sh", "-c", f'"$@" {redirection}', "sh", *words]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"} | environment
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert all(any(line.endswith(word) for line in lines) for word in ("one", "tw\u00f6", "three"))
    assert (tmp_path / "file").read_text() == "True"
    return done


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_stream_ends_no_run_and_gives_its_number_to_no_file(redirection, tmp_path):
    talk(tmp_path, redirection)


@pytest.mark.parametrize("redirection", [">/dev/full", "| true", ">/dev/full 2>&1"])
def test_standard_output_that_cannot_be_written_is_said_once_and_ends_no_run(redirection, tmp_path):
    done = talk(tmp_path, redirection)
    if redirection == ">/dev/full":
        assert done.stderr.count("warning: standard output: cannot be written: No space left on device") == 1
        assert (tmp_path / "log.txt").read_text(encoding="utf-8").count("cannot be written") == 1


@pytest.mark.parametrize("end", [launch._fail, entry.end, lambda error, code: command(Mock(side_effect=error))()])
def test_error_that_standard_error_does_not_take_keeps_its_exit_code(end, monkeypatch):
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
        monkeypatch.setattr(sys, "stderr", full)
        try:
            code = end(UserError("wrong"), 2)
        except SystemExit as ended:
            code = ended.code
        monkeypatch.undo()
    assert code == 2


def test_letter_that_the_terminal_does_not_have_is_an_escape(tmp_path):
    assert "tw\\xf6" in talk(tmp_path, "", PYTHONIOENCODING="ascii").stdout
