"""Hooks: the user's own are found by name, and the built-in ones write what scripts read."""

import dataclasses
import json
import logging
import math
import sys
import types

import pytest

from image_classification.config import build_config
from image_classification.hooks import EmaHook, Hook, LogHook, ReportHook, TotalBatchSizeHook, _jsonable, load_hooks
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError, get_logger
from image_classification.trainer import Progress


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "my_hooks.py").write_text(
        "from image_classification.hooks import Hook\nclass Mine(Hook):\n    priority = 3\nclass Other: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_hooks", None)


def test_hook_of_the_user_is_made_from_its_name(user_module):
    (hook,) = load_hooks(["my_hooks:Mine"])
    assert isinstance(hook, Hook) and hook.priority == 3


@pytest.mark.parametrize("name", ["my_hooks", "my_hooks:Nobody", "my_hooks:Other", "nowhere:Mine", ":Mine", ""])
def test_hook_that_cannot_be_made_is_named(user_module, name):
    with pytest.raises(UserError, match="TRAIN.HOOKS"):
        load_hooks([name])


def test_metrics_hold_no_number_that_json_lacks():
    assert [_jsonable(value) for value in (1.5, float("inf"), float("nan"), 3)] == [1.5, "inf", "nan", 3]


@pytest.fixture
def log_lines():
    """Return the lines that the program's logger writes from here on."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger, level = get_logger(), get_logger().level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


@dataclasses.dataclass
class StartingTrainer:
    """What hooks look at before the first step."""

    hooks: list
    config: object
    parallel: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(data_size=3))
    steps_per_epoch: int = 7
    progress: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(epoch=0))


def test_total_batch_size_counts_accumulation_and_replicas(log_lines):
    config = build_config([("test", {"DATA": {"BATCH_SIZE": 16}, "TRAIN": {"ACCUM_ITER": 4}})])
    hook = TotalBatchSizeHook()
    hook.before_train(StartingTrainer([hook], config))
    assert log_lines == ["total batch size = 192 (16 x 4 accumulated x 3 replicas), 7 steps an epoch"]


def test_log_names_the_hooks_in_use_in_their_order(log_lines, user_module):
    hooks = [EmaHook(), *load_hooks(["my_hooks:Mine"]), TotalBatchSizeHook(), LogHook()]
    LogHook().before_train(StartingTrainer(hooks, build_config([])))
    assert log_lines[0] == "hooks, lower priorities first: EmaHook (0), Mine (3), TotalBatchSizeHook (9), LogHook (10)"


@dataclasses.dataclass
class EpochTrainer:
    """What ReportHook and LogHook look at after an epoch."""

    progress: object
    mean: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(loss=math.nan, top1=math.nan))
    evaluation: object = None
    precision: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(loss_scale=2.0))
    timer: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(images_per_second=3.0))
    parallel: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(is_main=True))
    config: object = dataclasses.field(default_factory=lambda: build_config([]))
    train_loader: object = ()


def test_report_names_no_checkpoint_that_is_not_there_and_no_loss_that_was_not(tmp_path):
    run = RunFolder(tmp_path)
    trainer = EpochTrainer(Progress(epoch=1, skipped_steps=7))
    ReportHook(run, {"device": "cpu"}).after_epoch(trainer)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["checkpoint"], report["train_loss"], report["best_top1"]) == (None, None, None)
    (tmp_path / "latest.pdparams").write_text("")
    ReportHook(run, {"device": "cpu"}).after_epoch(trainer)
    assert json.loads((tmp_path / "report.json").read_text())["checkpoint"] == str(tmp_path / "latest.pdparams")


def test_time_of_the_epoch_is_not_that_of_the_run(log_lines):
    hook, trainer = LogHook(), EpochTrainer(Progress(seconds=100.0))
    hook.before_epoch(trainer)
    trainer.progress.seconds, trainer.progress.epoch = 102.5, 1
    hook.after_epoch(trainer)
    assert log_lines[-1] == "----- Epoch[001/300], Train Loss: nan, Train Acc: nan, time: 2.50"
