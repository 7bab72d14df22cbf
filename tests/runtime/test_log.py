"""What the log writes and where."""

import os
import warnings

from image_classification import runtime
from image_classification.runtime import log


def test_terminal_log_goes_to_the_standard_output_of_the_moment(capsys, monkeypatch, tmp_path):
    """Not to the one of the moment it was set up, which may be closed by now."""
    with open(tmp_path / "closed", "w") as other:
        monkeypatch.setattr("sys.stdout", other)
        runtime.setup_logger()
        monkeypatch.undo()
    runtime.get_logger().info("still here")
    assert "still here" in capsys.readouterr().out


def test_file_begins_with_what_was_said_before_it_existed_and_holds_warnings_and_the_last_error(tmp_path, capsys):
    runtime.setup_logger()
    runtime.get_logger().info("early")
    runtime.setup_logger(tmp_path)
    runtime.get_logger().warning("late")
    warnings.warn("of a library", stacklevel=1)
    runtime.log_to_file("error: the last line")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 3)[3] for line in lines[:2]] == ["early", "warning: late"]
    assert any("UserWarning: of a library" in line for line in lines)
    assert lines[-1].endswith("error: the last line")
    assert "last line" not in capsys.readouterr().out


def test_name_that_is_no_text_is_escaped_in_the_file(tmp_path, capsys):
    runtime.setup_logger(tmp_path)
    runtime.get_logger().warning("corrupt image left out: %s", os.fsdecode(b"caf\xe9.jpg"))
    assert (tmp_path / "log.txt").read_text().endswith("corrupt image left out: caf\\udce9.jpg\n")
    assert not capsys.readouterr().err


def test_file_of_the_run_before_is_closed_whoever_still_holds_its_handler(tmp_path):
    (tmp_path / "next").mkdir()
    held = runtime.setup_logger(tmp_path).handlers[-1]
    file = held.stream
    runtime.setup_logger(tmp_path / "next")
    assert file.closed


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    """Also while the clock is set back, and where some images took longer than those before."""
    monkeypatch.setattr(log, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr("tqdm.std.time", map(float, range(100, 0, -1)).__next__)
    with runtime.progress_bar(6, "evaluate", "img") as bar:
        for images in (4, 1, 1):
            bar.update(images)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"evaluate: {done} of 6 img" for done in (0, 4, 5, 6)]
    assert ", eta 0" in lines[1]
    with runtime.progress_bar(4, "epoch", "batch", lines=False) as bar:
        bar.update(2)
    monkeypatch.undo()
    with runtime.progress_bar(4, "evaluate", "img") as bar:  # short work says nothing, whatever else is said
        bar.update(4)
        bar.write("", end="")
    assert capsys.readouterr() == ("", "")
