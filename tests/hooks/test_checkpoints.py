"""When complete states are saved, and under which names."""

import shutil
from pathlib import Path

import pytest

from image_classification import checkpoint
from image_classification.hooks import CheckpointHook, Hook, ReportHook
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError
from image_classification.weights import read_weights
from tests.helpers.small_runs import config_of, trainer_of


class Saved:
    """Stands for the store of checkpoints: notes what was saved."""

    def __init__(self):
        self.names = []

    def save(self, state, name, is_best=False):
        progress = state["progress"]
        self.names.append((name, progress["step"], progress["skipped_steps"], is_best))
        return Path(name)


def saved_by(tmp_path, accuracies, bad_steps=(), **sections):
    """Return (what a run of five steps an epoch saved, the hook), with given accuracies and skipped steps."""
    hook = CheckpointHook(RunFolder(tmp_path))
    hook.store = Saved()
    train = {"NUM_EPOCHS": len(accuracies), **sections.pop("TRAIN", {})}
    trainer = trainer_of(config_of(train=train, **sections), hooks=[hook])
    accuracies, plain = iter(accuracies), trainer.criterion

    def evaluate():
        top1, best = next(accuracies), trainer.progress.best_top1
        figures = {"top1": top1, "loss": 1.0, "images": 10, "non_finite": 0}
        trainer.evaluation = figures | {"is_best": best is None or top1 > best}
        trainer.progress.best_top1 = top1 if best is None else max(best, top1)

    def criterion(logits, labels):
        bad = trainer.progress.step + trainer.progress.skipped_steps in bad_steps
        return plain(logits, labels) * (float("inf") if bad else 1.0)

    trainer.evaluate, trainer.criterion = evaluate, criterion
    trainer.fit()
    return hook.store.names, hook


def test_checkpoints_are_saved_where_due_at_the_best_and_at_the_end(tmp_path):
    names, hook = saved_by(tmp_path, [0.5, 0.7, 0.6, 0.6, 0.6], SAVE_FREQ=3, VALIDATE_FREQ=1, KEEP=4)
    assert names == [
        ("epoch_0001", 5, 0, True), ("epoch_0002", 10, 0, True), ("epoch_0003", 15, 0, False),
        ("epoch_0005", 25, 0, False),
    ]  # fmt: skip
    assert hook.store.keep == 4


@pytest.mark.parametrize(("accuracies", "bad_steps", "expected"), [
    ([0.5], (2, 3), [("step", 2, 0, False), ("epoch_0001", 3, 2, True)]),
    ([0.5, 0.4], (), [("step", 2, 0, False), ("step", 4, 0, False), ("epoch_0001", 5, 0, True), ("step", 6, 0, False),
                      ("step", 8, 0, False), ("epoch_0002", 10, 0, False)]),
])  # fmt: skip
def test_checkpoints_between_epochs_follow_applied_steps(tmp_path, accuracies, bad_steps, expected):
    """Every second applied step of the run: skipped ones save step 2 not again, the last of an epoch is saved once."""
    names, _ = saved_by(tmp_path, accuracies, bad_steps, SAVE_STEPS=2, VALIDATE_FREQ=1)
    assert names == expected


def test_checkpoint_of_an_old_evaluation_is_not_the_best_again(tmp_path):
    """Evaluated after every second epoch: what is saved after the third is not the best for the second's sake."""
    names, _ = saved_by(tmp_path, [0.5, 0.4, 0.0, 0.0], SAVE_FREQ=1, VALIDATE_FREQ=2)
    assert [is_best for *_, is_best in names] == [False, True, False, False]


class Accuracies(Hook):
    """Evaluations that give these accuracies in turn."""

    def __init__(self, *values):
        self.values = list(values)

    def before_train(self, trainer):
        def evaluate():
            top1, best = self.values.pop(0), trainer.progress.best_top1
            figures = {"top1": top1, "top5": 1.0, "loss": 1.0, "images": 10, "non_finite": 0}
            trainer.evaluation = figures | {"is_best": best is None or top1 > best}
            trainer.progress.best_top1 = top1 if best is None else max(best, top1)

        trainer.evaluate = evaluate


def resumed_elsewhere(tmp_path, prepare, later):
    """Train two epochs, top-1 0.7 and 0.6, in one folder and a third in another; return (the trainer, that folder)."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    first = trainer_of(config_of(train={"NUM_EPOCHS": 2}), hooks=[CheckpointHook(RunFolder(old)), Accuracies(0.7, 0.6)])
    old.mkdir()
    first.fit()
    prepare(old)
    second = trainer_of(config_of(train={"NUM_EPOCHS": 3}), hooks=[CheckpointHook(RunFolder(new)), Accuracies(later)])
    second.load_state(checkpoint.load(old / "latest.pdparams"), old / "latest.pdparams")
    second.fit()
    return second, new


@pytest.mark.parametrize(("later", "epoch"), [(0.5, 1), (0.9, 3)])
def test_run_that_continues_in_a_new_folder_has_its_best_there(tmp_path, later, epoch):
    trainer, folder = resumed_elsewhere(tmp_path, lambda old: None, later)
    best = checkpoint.load(folder / "best.pdparams")
    assert (best["progress"]["epoch"], best["progress"]["best_top1"]) == (epoch, trainer.progress.best_top1)
    weights = read_weights(folder / "best_weights.safetensors").tensors
    assert (weights["conv.weight"] == best["model"]["conv.weight"]).all()


def test_best_weights_are_the_averaged_ones_that_were_evaluated(tmp_path):
    config = config_of(train={"NUM_EPOCHS": 1, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.5})
    trainer_of(config, hooks=[CheckpointHook(RunFolder(tmp_path)), Accuracies(0.7)]).fit()
    state = checkpoint.load(tmp_path / "best.pdparams")
    weights = read_weights(tmp_path / "best_weights.safetensors").tensors["conv.weight"]
    assert (weights == state["ema"]["conv.weight"]).all() and (weights != state["model"]["conv.weight"]).any()


def remove(path):
    path.unlink()


def cut(path):
    content = path.read_bytes()
    remove(path)  # its other names are links
    path.write_bytes(content[:1000])


class RemoveFolder(Hook):
    priority = 95  # behind the first checkpoint

    def after_epoch(self, trainer):
        if trainer.progress.epoch == 1:
            shutil.rmtree(trainer.config.OUTPUT)


def test_folder_that_was_removed_during_the_run_can_be_continued(tmp_path, caplog):
    """`-cfg=<folder>` needs the recipe there, not the checkpoint alone."""
    config = config_of(OUTPUT=str(tmp_path / "run"), SAVE_FREQ=1, train={"NUM_EPOCHS": 3})
    folder = RunFolder.create(config)
    before = {path.name: path.read_bytes() for path in folder.path.glob("*.yaml")}
    trainer_of(config, hooks=[CheckpointHook(folder), RemoveFolder()]).fit()
    assert {path.name: path.read_bytes() for path in folder.path.glob("*.yaml")} == before != {}
    assert sum("was removed, and is made anew" in line for line in caplog.messages) == 1
    assert {"latest.pdparams", "epoch_0003.pdparams"} <= {path.name for path in folder.path.iterdir()}


@pytest.mark.parametrize("harm", [remove, cut])
def test_run_whose_best_did_not_stay_beside_its_checkpoint_counts_the_best_anew(tmp_path, harm):
    trainer, folder = resumed_elsewhere(tmp_path, lambda old: harm(old / "best.pdparams"), 0.5)
    assert trainer.progress.best_top1 == 0.5
    assert checkpoint.load(folder / "best.pdparams")["progress"]["epoch"] == 3


@pytest.mark.parametrize(("is_main", "message"), [(True, "best_weights"), (False, "rank 0 could not write")])
def test_best_that_rank_0_cannot_copy_ends_the_run_on_every_process(tmp_path, is_main, message, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    trainer_of(config_of(train={"NUM_EPOCHS": 1}), hooks=[CheckpointHook(RunFolder(old)), Accuracies(0.7)]).fit()
    (new / "best_weights.safetensors").mkdir(parents=True)
    trainer = trainer_of(config_of(train={"NUM_EPOCHS": 2}))
    trainer.load_state(checkpoint.load(old / "latest.pdparams"), old / "latest.pdparams")
    votes = []
    monkeypatch.setattr(trainer.parallel, "is_main", is_main)
    monkeypatch.setattr(trainer.parallel, "any", lambda flag: votes.append(flag) or True)
    with pytest.raises(UserError, match=message):
        CheckpointHook(RunFolder(new)).before_train(trainer)
    assert votes == [is_main]


def test_report_of_a_run_that_counts_the_best_anew_claims_no_best(tmp_path):
    trainers, reports = [], []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        run, report = RunFolder(tmp_path / name), {"device": "cpu", "epochs": 0, "top1": None, "top5": None,
                                                   "eval_images": None}  # fmt: skip
        hooks = [CheckpointHook(run), ReportHook(run, report), Accuracies(0.7)]
        trainers.append(trainer_of(config_of(train={"NUM_EPOCHS": 1}), hooks=hooks))
        reports.append(report)
    trainers[0].fit()
    (tmp_path / "old" / "best.pdparams").unlink()
    path = tmp_path / "old" / "latest.pdparams"
    for is_best, top1 in ((True, 0.7), (False, None)):  # the best is the resumed checkpoint itself, or is gone
        state = checkpoint.load(path)
        state["run"]["is_best"] = is_best
        trainers[1].load_state(state, path)
        checkpoint.save(path, state)
        trainers[1].call("before_train")
        assert reports[1]["best_top1"] == trainers[1].progress.best_top1 == top1
