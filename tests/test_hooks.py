"""Hooks: the user's own are found by name, and the built-in ones write what scripts read."""

import sys

import pytest

from image_classification.config import build_config, load_config, to_yaml
from image_classification.hooks import Hook, _jsonable, load_hooks
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError


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


def test_run_folder_holds_the_configuration_that_made_it(tmp_path):
    config = build_config([("test", {"SAVE": str(tmp_path), "SEED": 11, "TRAIN": {"BASE_LR": 0.25}})])
    folder = RunFolder.create(config)
    assert folder.path.parent == tmp_path and folder.path.name.startswith("train-")
    assert load_config(["-cfg", str(folder.path / "config.yaml")]) == load_config_of(tmp_path, to_yaml(config))


def load_config_of(folder, text):
    path = folder / "again.yaml"
    path.write_text(text)
    return load_config(["-cfg", str(path)])


def test_two_run_folders_made_in_one_second_differ(tmp_path):
    config = build_config([("test", {"SAVE": str(tmp_path)})])
    assert len({RunFolder.create(config).path for _ in range(3)}) == 3
