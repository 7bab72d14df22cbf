"""Checkpoints: whole or not at all, the last few kept, foreign and damaged files refused in one line."""

import copy
import os
import pickle

import numpy as np
import paddle
import pytest

from image_classification import checkpoint
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.parallel.single import SingleProcess
from image_classification.progress import Progress, recount
from image_classification.runtime import UserError
from tests.helpers.checkpoints import make_state
from tests.helpers.model_zoo import CONFIGS, builder


def test_state_saved_and_loaded_is_the_same_bits(tmp_path):
    checkpoint.save(tmp_path / "a.pdparams", make_state(1 / 3))
    loaded = checkpoint.load(tmp_path / "a.pdparams")
    assert loaded.keys() == make_state().keys()
    assert (loaded["model"]["weight"] == np.float32(1 / 3)).all()
    assert loaded["optimizer"]["weight/moment1"].dtype == np.float32


def test_checkpoint_loads_with_paddle_itself(tmp_path):
    checkpoint.save(tmp_path / "a.pdparams", make_state())
    found = paddle.load(str(tmp_path / "a.pdparams"))
    assert found["model"]["weight"].shape == [3, 2]
    assert found["rng"][0]["numpy"]["keys"].tolist() == np.random.get_state()[1].tolist()


def test_state_from_before_the_first_evaluation_is_a_state(tmp_path):
    state = make_state()
    state["progress"]["best_top1"] = Progress().best_top1
    checkpoint.save(tmp_path / "a.pdparams", state)
    assert checkpoint.load(tmp_path / "a.pdparams")["progress"]["best_top1"] is None


@pytest.mark.parametrize("given", ["a", "a.pdparams"])
def test_path_is_found_with_and_without_its_ending(tmp_path, given):
    (tmp_path / "a.pdparams").write_bytes(b"")
    assert checkpoint.find(tmp_path / given) == tmp_path / "a.pdparams"


def test_run_folder_means_its_latest(tmp_path):
    with pytest.raises(UserError, match="the folder has no latest.pdparams"):
        checkpoint.find(tmp_path)
    (tmp_path / "latest.pdparams").write_bytes(b"")
    assert checkpoint.find(tmp_path) == tmp_path / "latest.pdparams"


def test_file_of_weights_alone_is_no_state(tmp_path):
    (tmp_path / "best_weights.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"-resume: .*best_weights.safetensors: holds weights.*-pretrained"):
        checkpoint.find(tmp_path / "best_weights.safetensors")


def test_missing_file_is_named_with_its_flag(tmp_path):
    with pytest.raises(UserError, match=r"-resume: .*nowhere: no such file"):
        checkpoint.find(tmp_path / "nowhere")


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
    assert kind != "text" or str(caught.value).endswith("a.pdparams: is no .pdparams file, or damaged")


@pytest.fixture(scope="module")
def trainer():
    """A trainer as `-resume` has it before it loads the state."""
    path = next(path for path in CONFIGS if path.stem == "vit_tiny_digits")
    small = ["MODEL.DEPTH=1", "MODEL.EMBED_DIM=8", "MODEL.NUM_HEADS=1", "TRAIN.MODEL_EMA=True", "DATA.NUM_WORKERS=0"]
    build_model = builder(path.parents[1])
    config = load_config([f"-cfg={path}", "-amp_mode=naive", "-amp_dtype=float16", "-opts", *small], build_model)
    return build_trainer(build_parts(config, build_model, SingleProcess()))


def leaves(tree, place=()):
    """Yield the place of every value in a state, those of arrays by name once for each section."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*place, key)
        if isinstance(value, dict | list):
            first = list(value.items())[:1] if place == () and key in ("model", "optimizer", "ema") else None
            yield from leaves(dict(first) if first else value, (*place, key))


HOSTILE_VALUES = [
    None, True, -1, 10**9, 10**40, -0.5, float("nan"), float("inf"), "", "x" * 3000, "\x1b[2J", b"\x00", [], [[]], {},
    {"x": 1}, (), np.zeros(0, "float32"), np.zeros((1, 1), "uint8"), np.zeros(624, "float64"), np.full(624, -1),
    "(" * 5000, "(3, (" + "1, " * 624 + "999), None)", "1 " * 312 + "999", "9" * 20 + " 1" * 312,
]  # fmt: skip


def test_every_value_of_a_state_replaced_by_every_hostile_one_is_an_error_or_resumes(tmp_path, trainer):
    """Whatever passes the schema must also pass the trainer, and leave generators that still draw."""
    whole = checkpoint.to_arrays(trainer.state())
    path = tmp_path / "latest.pdparams"
    checkpoint.save(path, whole)
    trainer.load_state(checkpoint.load(path), path)
    assert paddle.load(str(path)).keys() == whole.keys()
    refused = 0
    for place in list(leaves(whole)):
        for value in HOSTILE_VALUES:
            state = copy.copy(whole)
            inner = state
            for key in place[:-1]:
                inner[key] = copy.copy(inner[key])
                inner = inner[key]
            inner[place[-1]] = value
            try:
                checkpoint.validate(state, path)
                trainer.load_state(state, path)
                np.random.standard_normal(1000)
                paddle.rand([1000])
            except UserError as error:
                refused += 1
                assert "latest.pdparams: " in str(error) or place[0] in ("model", "optimizer"), (place, str(error))
    assert refused > 400
    trainer.load_state(checkpoint.load(path), path)


def test_progress_beyond_the_epoch_of_this_run_is_refused(tmp_path, trainer):
    """The file's own units may say that an epoch is that long."""
    state = checkpoint.to_arrays(trainer.state())
    state["units"] = {"images_per_batch": 10, "images_per_step": 10, "steps_per_epoch": 10**9}
    state["progress"]["batch"] = 10**9
    checkpoint.validate(state, "a.pdparams")
    with pytest.raises(UserError, match="10000000000 images of the running epoch are done"):
        trainer.load_state(state, "a.pdparams")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("progress", "batch"), 10**9, "progress.batch: 1000000000 is not one of the 6 batches"),
        (("progress", "best_top1"), float("nan"), "progress.best_top1: expected a number of 0 to 1, found nan"),
        (("progress", "epoch"), True, "progress.epoch: expected an integer of 0 to 1000000000000, found True"),
        (("progress", "sums"), [1.0], "progress.sums: expected 3 entries, found a list"),
        (("rng", 0, "numpy", "position"), 10**6, "rng[0].numpy.position: expected an integer of 0 to 624"),
        (("rng", 1, "tensor_parallel", "python"), "(3, (1,), None)", "rng[1].tensor_parallel.python: expected"),
        (("rng",), [], "rng: expected a list of 1 entries and more"),
        (("ema", "weight"), np.zeros([2, 3], "float32"), "ema: its names and shapes are not those of model"),
        (("model", "weight"), [1.0], "model.weight: expected an array of float32 or int64, found a list"),
        (("optimizer", "other/moment1"), np.zeros([3, 2], "float32"), "optimizer.other/moment1: is [3, 2], of no"),
        (("optimizer", "weight/moment1"), np.zeros([3], "float32"), "optimizer.weight/moment1: is [3], of no"),
        (("precision", "state", "loss_scaler0", "scale"), 0.0, "precision.state.loss_scaler0.scale: expected a number"),
        (("precision", "state", "scale"), 1.0, "precision.state.scale: is no key of a checkpoint"),
        (("units", "images_per_batch"), 3, "progress.batch: 4 is not one of the 6 batches of an epoch"),
    ],
)
def test_value_that_no_run_can_have_left_is_named(tmp_path, place, value, message):
    state = checkpoint.to_arrays(make_state())
    inner = state
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    checkpoint.save(tmp_path / "a.pdparams", state)
    with pytest.raises(UserError) as caught:
        checkpoint.load(tmp_path / "a.pdparams")
    assert str(caught.value).startswith(f"-resume: {tmp_path / 'a.pdparams'}: {message}")


def test_changed_byte_of_a_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "a.pdparams"
    checkpoint.save(path, make_state())
    content = bytearray(path.read_bytes())
    for index in range(0, len(content), 211):
        content[index] ^= 16
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged|no weight|refused|format"):
            checkpoint.load(path)
        content[index] ^= 16


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
        checkpoint.check_matches(own, other, "x.pdparams")
    for part in ("x.pdparams", "lacks c", "has unmatched d", "b [3, 2] instead of [2, 3]"):
        assert part in str(caught.value)
    checkpoint.check_matches(own, own, "x.pdparams")


def test_store_keeps_the_last_few_and_best_and_latest(tmp_path):
    store = checkpoint.Store(tmp_path, keep=2)
    for epoch in range(1, 6):
        store.save(make_state(epoch), f"epoch_{epoch:04d}", is_best=epoch == 2)
    store.save(make_state(6), "step")
    names = sorted(os.listdir(tmp_path))
    expected = ["best.pdparams", "epoch_0004.pdparams", "epoch_0005.pdparams", "latest.pdparams", "step.pdparams"]
    assert names == expected
    assert checkpoint.load(tmp_path / "best.pdparams")["model"]["weight"][0, 0] == 2
    assert checkpoint.load(tmp_path / "latest.pdparams")["model"]["weight"][0, 0] == 6


def test_epochs_of_a_later_time_stay_when_an_older_one_is_continued(tmp_path):
    store = checkpoint.Store(tmp_path, keep=1)
    for epoch in (1, 5, 2):
        store.save(make_state(epoch), f"epoch_{epoch:04d}")
    assert sorted(path.name for path in tmp_path.glob("epoch*")) == ["epoch_0002.pdparams", "epoch_0005.pdparams"]


def test_epochs_of_five_digits_come_after_those_of_four(tmp_path):
    store = checkpoint.Store(tmp_path, keep=1)
    for epoch in (9998, 9999, 10000, 10001):
        store.save(make_state(epoch), f"epoch_{epoch:04d}")
    assert [path.name for path in tmp_path.glob("epoch*")] == ["epoch_10001.pdparams"]


def test_completing_a_commit_twice_changes_nothing_and_leaves_no_link_behind(tmp_path):
    store = checkpoint.Store(tmp_path, keep=1)
    store.save(make_state(1), "epoch_0001", is_best=True)
    latest = store.save(make_state(2), "epoch_0002")
    for _ in range(2):
        store.complete(tmp_path / "latest.pdparams", "epoch_0002", True)  # killed before `best`
    names = sorted(os.listdir(tmp_path))
    assert names == ["best.pdparams", "epoch_0002.pdparams", "latest.pdparams"]
    assert (tmp_path / "best.pdparams").samefile(latest)


def test_continuing_from_an_older_checkpoint_leaves_best_alone(tmp_path):
    store = checkpoint.Store(tmp_path, keep=3)
    first = store.save(make_state(1), "epoch_0001", is_best=True)
    second = store.save(make_state(2), "epoch_0002", is_best=True)
    store.complete(first, "epoch_0001", True)
    assert (tmp_path / "best.pdparams").samefile(second) and first.exists()


def test_store_on_a_file_system_without_links_copies(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    checkpoint.Store(tmp_path, keep=1).save(make_state(), "epoch_0001", is_best=True)
    assert checkpoint.load(tmp_path / "best.pdparams")["progress"] == make_state()["progress"]


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


def test_progress_of_a_checkpoint_that_knows_no_number_of_images_is_counted_anew(caplog):
    """As those of before there was one."""
    progress = Progress(epoch=1, batch=4, step=8)
    own = {"images_per_batch": 8, "images_per_step": 8, "steps_per_epoch": 3, "images": 24}
    recount(progress, {"images_per_batch": 4, "images_per_step": 4, "steps_per_epoch": 6}, own, 3)
    assert (progress.batch, progress.step) == (2, 4)
    assert "the total batch size was 4, now it is 8: step 8 counts as 4" in caplog.text
    assert "training images" not in caplog.text
