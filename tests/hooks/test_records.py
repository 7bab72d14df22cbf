"""What scripts read of a run."""

import json

import pytest

from image_classification.hooks import RecordHook, ReportHook
from image_classification.hooks.records import _jsonable
from image_classification.progress import Progress, Resumed
from image_classification.run_folder import RunFolder
from tests.faults.contents import scalars
from tests.hooks.trainers import EpochTrainer


def test_metrics_hold_no_number_that_json_lacks():
    assert [_jsonable(value) for value in (1.5, float("inf"), float("nan"), 3)] == [1.5, "inf", "nan", 3]


def test_report_names_no_checkpoint_that_is_not_there_and_no_loss_that_was_not(tmp_path):
    run = RunFolder(tmp_path)
    trainer = EpochTrainer(Progress(epoch=1, skipped_steps=7))
    ReportHook(run, {"device": "cpu", "epochs": 0}).after_epoch(trainer)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["checkpoint"], report["train_loss"], report["best_top1"]) == (None, None, None)
    (tmp_path / "latest.pdparams").write_text("")
    ReportHook(run, {"device": "cpu", "epochs": 0}).after_epoch(trainer)
    assert json.loads((tmp_path / "report.json").read_text())["checkpoint"] == str(tmp_path / "latest.pdparams")


def test_report_keeps_the_best_after_a_worse_evaluation_and_after_none(tmp_path):
    trainer, hook = EpochTrainer(Progress(best_top1=0.75)), ReportHook(RunFolder(tmp_path), {"device": "cpu"})
    worse = {"top1": 0.5, "top5": 0.875, "images": 8}
    for epoch, evaluation in enumerate((worse, None), start=1):
        trainer.progress.epoch, trainer.evaluation = epoch, evaluation
        hook.after_epoch(trainer)
        report = json.loads((tmp_path / "report.json").read_text())
        assert [report[name] for name in ("epochs", "best_top1", "top1", "top5")] == [epoch, 0.75, 0.5, 0.875]


def test_visualdl_counts_skipped_steps_so_that_no_two_numbers_have_one_place(tmp_path):
    """An evaluation, whose line does not say how many were skipped, stands where the steps before it do."""
    run = RunFolder(tmp_path)
    for step, skipped in ((1, 0), (1, 1), (2, 1)):
        run.append_metrics({"kind": "train", "step": step, "loss": 0.5, "skipped_steps": skipped})
    run.append_metrics({"kind": "eval", "step": 2, "top1": 0.25})
    hook = RecordHook(run)
    hook._open()
    hook.writer.close()
    assert scalars(tmp_path)["train/loss"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert scalars(tmp_path)["eval/top1"] == [(3, 0.25)]


@pytest.mark.parametrize("is_own", [True, False])
def test_resumed_run_has_a_report_at_once_only_beside_its_checkpoint(tmp_path, is_own):
    """A folder with a report is a run's: one where nothing was saved yet must be free for the same command again."""
    trainer, hook = EpochTrainer(Progress()), ReportHook(RunFolder(tmp_path), {"device": "cpu"})
    path = (tmp_path if is_own else tmp_path / "elsewhere") / "latest.pdparams"
    trainer.resumed = Resumed(path, {"report": {"top1": 0.5, "images_per_second": 64.0}})
    hook.before_train(trainer)
    assert hook.report["top1"] == 0.5 and (tmp_path / "report.json").exists() == is_own
    trainer.progress.epoch, trainer.timer.images_per_second = 1, 0.0  # what was left was an evaluation
    hook.after_epoch(trainer)
    assert hook.report["images_per_second"] == 64.0


def test_lines_behind_a_checkpoint_are_dropped_where_the_run_goes_on_from_it(tmp_path):
    """Their steps are made again, and each is there once."""
    run, trainer = RunFolder(tmp_path), EpochTrainer(Progress())
    for step in (1, 2):
        run.append_metrics({"kind": "train", "step": step})
    trainer.resumed = Resumed(tmp_path / "latest.pdparams", {"metrics_bytes": run.sync_metrics()})
    run.append_metrics({"kind": "train", "step": 3})
    hook = RecordHook(run)
    hook._open = hook._add_facts = lambda *trainer: None  # of VisualDL
    hook.before_train(trainer)
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
