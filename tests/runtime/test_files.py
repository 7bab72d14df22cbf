"""Files appear whole or not at all."""

import os
import stat

import pytest

from image_classification import runtime
from image_classification.runtime.files import _umask


def test_atomic_write_failing_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        with runtime.atomic_write(path) as file:
            file.write(b"half of the new")
            raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.bin"]


def test_atomic_write_on_a_disk_that_fails_altogether_says_what_failed_first(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "unlink", full)
    with pytest.raises(runtime.UserError, match=r"state\.bin: cannot be written: No space left on device"):
        with runtime.atomic_write(tmp_path / "state.bin") as file:
            file.write(b"new")


def test_atomic_write_whole_replaces_the_file_with_usual_permissions(tmp_path):
    path = tmp_path / "folder" / "state.bin"
    with runtime.atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()


def test_atomic_write_into_a_file_as_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(runtime.UserError, match="cannot be written"):
        with runtime.atomic_write(tmp_path / "file" / "state.bin"):
            pass
