"""The process module: atomic files, random state, threads."""

import os
import random
import stat

import numpy as np
import paddle
import pytest

from image_classification import runtime


def test_atomic_write_failing_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        with runtime.atomic_write(path) as file:
            file.write(b"half of the new")
            raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.bin"]


def test_atomic_write_whole_replaces_the_file_with_usual_permissions(tmp_path):
    path = tmp_path / "folder" / "state.bin"
    with runtime.atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~runtime._umask()


def test_atomic_write_into_a_file_as_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(runtime.UserError, match="cannot be written"):
        with runtime.atomic_write(tmp_path / "file" / "state.bin"):
            pass


def draw():
    return random.random(), np.random.rand(2).tolist(), paddle.rand([3]).tolist(), paddle.randn([2]).tolist()


def test_rng_state_restored_repeats_every_generator():
    runtime.seed_everything(5)
    draw()
    state = runtime.rng_state()
    expected = draw()
    draw()
    runtime.set_rng_state(state)
    assert draw() == expected


def test_rng_state_is_plain_data():
    """A checkpoint must not hold objects of Paddle's: they would tie it to a version and to a pickle."""
    state = runtime.rng_state()
    assert isinstance(state["python"], str)
    assert all(isinstance(value, int | str) for generator in state["paddle"] for value in generator.values())


def test_seeds_differ_give_different_numbers():
    runtime.seed_everything(1)
    first = draw()
    runtime.seed_everything(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))


def test_set_threads_keeps_what_the_user_exported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    runtime.set_threads(3)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("7", "3")


def test_threads_are_shared_among_the_processes_of_a_host(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "1000")
    runtime.set_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_asking_for_a_gpu_without_one_is_a_user_error():
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(runtime.UserError, match="no GPU"):
        runtime.select_device("gpu")
    with pytest.raises(runtime.UserError, match="DEVICE"):
        runtime.select_device("tpu")
    assert runtime.select_device("auto") == "cpu"
