"""What a run says while it trains."""

import logging

import pytest

from image_classification.config import build_config
from image_classification.hooks import EmaHook, LogHook, TotalBatchSizeHook, load_hooks
from image_classification.progress import Progress
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


def test_time_of_the_epoch_is_not_that_of_the_run(log_lines):
    hook, trainer = LogHook(), EpochTrainer(Progress(seconds=100.0))
    hook.before_epoch(trainer)
    trainer.progress.seconds, trainer.progress.epoch = 102.5, 1
    hook.after_epoch(trainer)
    assert log_lines[-1] == "----- Epoch[001/300], Train Loss: nan, Train Acc: nan, time: 2.50"
