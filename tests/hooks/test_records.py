"""What scripts read of a run."""

import json

from image_classification.hooks import ReportHook
from image_classification.hooks.records import _jsonable
from image_classification.progress import Progress
from image_classification.run_folder import RunFolder
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
