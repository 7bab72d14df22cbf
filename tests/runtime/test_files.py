"""Files appear whole or not at all."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

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


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "state.bin").write_text("old")
    (tmp_path / ".lock").write_text("")
    code = (
        "import os, sys\nfrom image_classification.runtime import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n    file.write(b'half')\n    os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "state.bin"]).returncode == -9
    assert len(os.listdir(tmp_path)) == 3
    runtime.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".lock", "state.bin"]
    assert (tmp_path / "state.bin").read_text() == "old"


def test_atomic_write_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, flushed, flush = tmp_path / "state.bin", [], os.fsync

    def fsync(descriptor):
        flushed.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with runtime.atomic_write(path) as file:
        file.write(b"new")
    assert flushed == [(False, False), (True, True)]  # the file, and its name in the folder


def test_home_when_it_can_be_written_to_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with runtime.temporary_home():
        assert Path.home() == tmp_path
    assert tmp_path.exists()


@pytest.mark.parametrize("file", ["home", "home/.cache", "home/.visualdl", "full"])
def test_home_when_it_cannot_be_written_to_is_another_for_a_while(monkeypatch, tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("no folder, so that not even root can write into it")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if file == "full":  # permissions say yes
        (tmp_path / "home").mkdir()
        temporary = tempfile.TemporaryFile
        full = lambda *words, dir=None: open("/dev/full", "wb") if dir else temporary(*words)  # noqa: E731, SIM115
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError), runtime.temporary_home():
        inside = Path.home()
        (inside / ".cache").mkdir()
        raise OSError
    assert not inside.exists() and os.environ["HOME"] == str(tmp_path / "home")


def test_home_when_nobody_knows_it_is_another_for_a_while(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is for a user without an entry
    with runtime.temporary_home():
        assert os.path.isdir(os.environ["HOME"])
    assert "HOME" not in os.environ


def test_home_and_temporary_folder_when_neither_can_be_written_to_are_named(monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.write_text("no folder, so that not even root can write into it")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(home)])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(OSError, match="nor any temporary folder: TMPDIR may") as caught, runtime.temporary_home():
        pass
    assert caught.value.filename == str(home)
    os.close(runtime.anonymous_file())  # what a run with several processes needs, and its loaders


# VisualDL makes folders at home when it is imported, Paddle then and when it traces a model.
WITHOUT_HOME = {
    "training": "from image_classification.hooks.records import RecordHook;"
                "hook = RecordHook(SimpleNamespace(path=Path(sys.argv[1]) / 'run', read_metrics=list)); hook._open();"
                "hook.writer.add_scalar('a', 1.0, 1); hook.writer.close()",
    "doctor": "from image_classification.tools.parts.amp_doctor_report import write_histograms;"
              "write_histograms(Path(sys.argv[1]) / 'run', SimpleNamespace(records=[]))",
    "multiply-adds": "from image_classification.multiply_adds import count_multiply_adds as count;"
                     "assert count(lambda: paddle.nn.Conv2D(3, 4, 3), 5).total == 972",
    "export": "from image_classification.tools import export; paddle.seed(0);"
              "from image_classification import zoo; from image_classification.weights import *;"
              "path = sys.argv[1] + '/w.safetensors';"
              "write_weights(path, export_tensors(zoo.create_model('resnet_tiny_digits'), 'torch'));"
              "assert export.main(['resnet_tiny_digits', '-pretrained', path, '-output', sys.argv[1] + '/out']) == 0",
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT_HOME)
def test_command_when_the_home_cannot_be_written_to_does_its_work(tmp_path, what):
    (tmp_path / "home").write_text("no folder, so that not even root can write into it")
    start = "import sys; from pathlib import Path; from types import SimpleNamespace;"
    start += "from image_classification.runtime import prepare_process; prepare_process(); import paddle;"
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", start + WITHOUT_HOME[what], str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_folder_appears_whole_or_not_at_all(tmp_path, is_there):
    folder = tmp_path / "a b" / "ä"
    if is_there:
        folder.mkdir(parents=True)
    with pytest.raises(KeyError), runtime.whole_folder(folder) as scratch:
        (scratch / "one").write_text("1")
        raise KeyError
    assert folder.exists() == is_there and [path.name for path in tmp_path.rglob("*")] == ["a b", "ä"][: 2 * is_there]
    with runtime.whole_folder(folder) as scratch:
        (scratch / "one").write_text("1")
        assert not (folder / "one").exists()
    assert [path.name for path in folder.iterdir()] == ["one"]


def test_error_of_the_system_in_a_folder_is_one_line_that_names_it(tmp_path):
    with pytest.raises(runtime.UserError, match=f"^{tmp_path}: cannot be written to: No such file or directory$"):
        with runtime.writing_to(tmp_path):
            (tmp_path / "nowhere" / "file").write_bytes(b"")
    with pytest.raises(ZeroDivisionError):  # a fault of ours stays one
        with runtime.writing_to(tmp_path):
            raise ZeroDivisionError
