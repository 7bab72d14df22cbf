"""What the log writes and where."""

import warnings

from image_classification import runtime


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
    runtime.get_logger().info("late")
    warnings.warn("of a library", stacklevel=1)
    runtime.log_to_file("error: the last line")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 3)[3] for line in lines[:2]] == ["early", "late"]
    assert any("UserWarning: of a library" in line for line in lines)
    assert lines[-1].endswith("error: the last line")
    assert "last line" not in capsys.readouterr().out
