"""Checkpoints: whole or not at all, the last few kept, foreign and damaged files refused in one line."""

import os
import pickle

import numpy as np
import paddle
import pytest

from image_classification import checkpoint
from image_classification.runtime import UserError


def make_state(value=1.0):
    return {
        "format": checkpoint.FORMAT,
        "model": {"weight": np.full([3, 2], value, "float32"), "steps": np.array(7)},
        "optimizer": {"weight/moment1": paddle.full([3, 2], value)},
        "precision": {"mode": "fp32", "dtype": "float32", "state": {}},
        "ema": {},
        "progress": {"epoch": 1},
        "rng": [],
        "config": "SEED: 0",
    }


def test_state_saved_and_loaded_is_the_same_bits(tmp_path):
    checkpoint.save(tmp_path / "a.pdparams", make_state(1 / 3))
    loaded = checkpoint.load(tmp_path / "a.pdparams")
    assert loaded.keys() == make_state().keys()
    assert (loaded["model"]["weight"] == np.float32(1 / 3)).all()
    assert loaded["optimizer"]["weight/moment1"].dtype == np.float32


def test_checkpoint_loads_with_paddle_itself(tmp_path):
    checkpoint.save(tmp_path / "a.pdparams", make_state())
    assert paddle.load(str(tmp_path / "a.pdparams"))["model"]["weight"].shape == [3, 2]


@pytest.mark.parametrize("given", ["a", "a.pdparams"])
def test_path_is_found_with_and_without_its_ending(tmp_path, given):
    (tmp_path / "a.pdparams").write_bytes(b"")
    assert checkpoint.find(tmp_path / given, "-resume") == tmp_path / "a.pdparams"


def test_missing_file_is_named_with_its_flag(tmp_path):
    with pytest.raises(UserError, match=r"-resume: .*nowhere: no such file"):
        checkpoint.find(tmp_path / "nowhere", "-resume")


def damaged(kind):
    whole = pickle.dumps(make_state() | {"optimizer": {}})
    return {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "text": b"not a checkpoint\n",
        "list": pickle.dumps([1, 2]),
        "weights only": pickle.dumps({"weight": np.zeros(2, "float32")}),
        "future": pickle.dumps(make_state() | {"optimizer": {}, "format": 99}),
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "truncated", "text", "list", "weights only", "future"])
def test_damaged_or_foreign_checkpoint_is_one_clear_line(tmp_path, kind):
    path = tmp_path / "a.pdparams"
    path.write_bytes(damaged(kind))
    with pytest.raises(UserError) as caught:
        checkpoint.load(path)
    assert str(path) in str(caught.value) and "-resume" in str(caught.value) and "\n" not in str(caught.value)


class Program:
    """What a hostile file would hold: a call that runs when the file is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_checkpoint_that_holds_a_program_is_refused_and_runs_nothing(tmp_path):
    path, trace = tmp_path / "a.pdparams", tmp_path / "trace"
    path.write_bytes(pickle.dumps(make_state() | {"optimizer": {}, "ema": Program(trace)}))
    trace.unlink(missing_ok=True)
    with pytest.raises(UserError, match="refused"):
        checkpoint.load(path)
    assert not trace.exists()


def test_states_of_two_architectures_are_told_apart():
    own = {"a": np.zeros(2), "b": np.zeros([2, 3]), "c": np.zeros(1)}
    other = {"a": np.zeros(2), "b": np.zeros([3, 2]), "d": np.zeros(1)}
    with pytest.raises(UserError) as caught:
        checkpoint.check_matches(own, other, "x.pdparams", "-resume")
    for part in ("x.pdparams", "lacks c", "has unmatched d", "b [3, 2] instead of [2, 3]"):
        assert part in str(caught.value)
    checkpoint.check_matches(own, own, "x.pdparams", "-resume")


def test_store_keeps_the_last_few_and_best_and_latest(tmp_path):
    store = checkpoint.Store(tmp_path, keep=2)
    for epoch in range(1, 6):
        store.save(make_state(epoch), f"epoch_{epoch:04d}", is_best=epoch == 2)
    names = sorted(os.listdir(tmp_path))
    assert names == ["best.pdparams", "epoch_0004.pdparams", "epoch_0005.pdparams", "latest.pdparams"]
    assert checkpoint.load(tmp_path / "best.pdparams")["model"]["weight"][0, 0] == 2
    assert checkpoint.load(tmp_path / "latest.pdparams")["model"]["weight"][0, 0] == 5


def test_store_on_a_file_system_without_links_copies(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    checkpoint.Store(tmp_path, keep=1).save(make_state(), "epoch_0001", is_best=True)
    assert checkpoint.load(tmp_path / "best.pdparams")["progress"] == {"epoch": 1}


def test_failing_write_keeps_the_old_checkpoint(tmp_path):
    store = checkpoint.Store(tmp_path, keep=1)
    store.save(make_state(1), "step")

    class Unpicklable:
        def __reduce__(self):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        store.save(make_state(2) | {"rng": [Unpicklable()]}, "step")
    assert checkpoint.load(tmp_path / "latest.pdparams")["model"]["weight"][0, 0] == 1
    assert sorted(os.listdir(tmp_path)) == ["latest.pdparams", "step.pdparams"]
