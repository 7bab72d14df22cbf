"""What a run says while it trains."""

import dataclasses
import io
import logging
import types

import pytest

from image_classification.config import build_config
from image_classification.hooks import EmaHook, LogHook, TotalBatchSizeHook, load_hooks
from image_classification.hooks.log import step_line
from image_classification.progress import Progress, RunningMean, Timer
from image_classification.runtime import get_logger
from tests.hooks.trainers import EpochTrainer, StartingTrainer


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


def test_total_batch_size_counts_accumulation_and_replicas(log_lines):
    config = build_config([("test", {"DATA": {"BATCH_SIZE": 16}, "TRAIN": {"ACCUM_ITER": 4}})])
    hook = TotalBatchSizeHook()
    hook.before_train(StartingTrainer([hook], config))
    assert log_lines == ["total batch size = 192 (16 x 4 accumulated x 3 replicas), 7 steps an epoch"]


def test_log_names_the_hooks_in_use_in_their_order(log_lines, user_module):
    hooks = [EmaHook(), *load_hooks(["my_hooks:Mine"]), TotalBatchSizeHook(), LogHook()]
    LogHook().before_train(StartingTrainer(hooks, build_config([])))
    assert log_lines[0] == "hooks, lower priorities first: EmaHook (0), Mine (3), TotalBatchSizeHook (9), LogHook (10)"


def test_training_begins_at_the_epoch_after_those_that_are_done_or_not_at_all(log_lines):
    trainer = StartingTrainer([], build_config([("test", {"TRAIN": {"NUM_EPOCHS": 3}})]))
    for trainer.progress.epoch in range(4):
        LogHook().before_train(trainer)
    said = [line for line in log_lines if line.startswith("Start")]
    assert said == [f"Start training from epoch {epoch}." for epoch in (1, 2, 3)]


def test_time_of_the_epoch_is_not_that_of_the_run(log_lines):
    hook, trainer = LogHook(), EpochTrainer(Progress(seconds=100.0))
    trainer.last_result, trainer.reports = types.SimpleNamespace(applied=True), lambda: False
    hook.before_epoch(trainer)
    trainer.progress.seconds, trainer.progress.epoch = 102.5, 1
    hook.after_step(trainer)
    trainer.progress.seconds = 107.0  # of the evaluation
    hook.after_epoch(trainer)
    assert log_lines[-1] == "----- Epoch[001/300], Train Loss: nan, Train Acc: nan, time: 2.50"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_of_a_resumed_epoch_has_its_number_and_its_place(monkeypatch):
    """The third of 300 epochs, of whose eight batches six are done; the next step takes both that are left."""
    monkeypatch.setattr("sys.stderr", Terminal())
    trainer = EpochTrainer(Progress(epoch=2, batch=6), train_loader=range(8))
    trainer.last_result, trainer.reports = types.SimpleNamespace(applied=True), lambda: False
    hook = LogHook()
    hook.before_epoch(trainer)
    assert (hook.bar.desc, hook.bar.n, hook.bar.total) == ("epoch 3/300", 6, 8)
    trainer.progress.batch = 8
    hook.after_step(trainer)
    assert hook.bar.n == 8
    hook.bar.close()


def test_line_of_a_step_counts_what_is_left_of_this_epoch_and_of_the_later_ones():
    trainer = EpochTrainer(Progress(epoch=1), mean=RunningMean())
    train = dataclasses.replace(trainer.config.TRAIN, NUM_EPOCHS=3)
    trainer.config = dataclasses.replace(trainer.config, TRAIN=train)
    trainer.steps_per_epoch, trainer.timer = 10, Timer()
    trainer.optimizer = types.SimpleNamespace(get_lr=lambda: 0.5)
    trainer.timer.add(2.0, 0.5, 8)
    line = step_line(trainer, 4)  # of the second epoch of three: 6 steps and 10
    assert line.startswith("Epoch[002/003], Step[0004/0010], lr: 0.5, ")
    assert line.endswith("batch_cost: 2.00000s, reader_cost: 0.50000s, ips: 4.00 samples/s, eta: 0:00:32")
