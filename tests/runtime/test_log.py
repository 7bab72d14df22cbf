"""What the log writes and where."""



from image_classification import runtime


def test_terminal_log_goes_to_the_standard_output_of_the_moment(capsys, monkeypatch, tmp_path):
    """Not to the one of the moment it was set up, which may be closed by now."""
    with open(tmp_path / "closed", "w") as other:
        monkeypatch.setattr("sys.stdout", other)
        runtime.setup_logger()
        monkeypatch.undo()
    runtime.get_logger().info("still here")
    assert "still here" in capsys.readouterr().out
