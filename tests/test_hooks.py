"""Hooks: the user's own are found by name, and the built-in ones write what scripts read."""

import dataclasses
import logging
import sys
import types

import pytest

from image_classification.config import build_config
from image_classification.hooks import EmaHook, Hook, LogHook, TotalBatchSizeHook, _jsonable, load_hooks
from image_classification.runtime import UserError, get_logger


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
