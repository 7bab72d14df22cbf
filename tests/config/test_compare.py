"""In which keys two configurations differ."""

from image_classification.config import build_config, to_yaml
from image_classification.config.compare import changes, flat, recipe_of, without_machine
from image_classification.config.yaml_text import load_yaml


def config_of(**sections):
    return build_config([("test", sections)])


def saved(config):
    return without_machine(flat(load_yaml(to_yaml(config), "there")))


def test_recipe_differs_in_nothing_from_its_own_yaml():
    config = config_of(DATA={"CROP_SCALE": [0.1, 1]}, AMP={"MODE": "O2", "LOSS_SCALE": 128})
    assert changes(saved(config), recipe_of(config)) == []


def test_every_key_that_differs_is_named_with_both_values():
    before = config_of(TRAIN={"BASE_LR": 1e-5, "OPTIMIZER": {"NAME": "Lion"}}, AMP={"MODE": "O1", "OPT": 3})
    now = config_of(TRAIN={"BASE_LR": 0.1, "OPTIMIZER": {"NAME": "Lion"}}, AMP={"MODE": "O2", "LOSS_SCALE": 128})
    assert sorted(changes(saved(before), recipe_of(now))) == [
        ("AMP.LOSS_SCALE", "not set", "128"),
        ("AMP.MODE", "O1", "O2"),
        ("AMP.OPT", "3", "not set"),
        ("TRAIN.BASE_LR", "1e-05", "0.1"),
    ]


def test_what_each_machine_has_of_its_own_is_no_difference():
    now = config_of(DATA={"DATA_PATH": "/elsewhere", "NUM_WORKERS": 3}, SAVE="elsewhere", EVAL=True)
    assert changes(saved(config_of()), recipe_of(now)) == []


def test_key_that_an_older_version_did_not_know_is_not_compared():
    before = saved(config_of())
    del before["TRAIN.FOCAL_GAMMA"]
    assert changes(before, recipe_of(config_of(TRAIN={"FOCAL_GAMMA": 2.0}))) == []


def test_long_value_is_cut():
    ((_, before, now),) = changes({"MODEL.X": "a" * 500}, {"MODEL.X": [1] * 500})
    assert max(len(before), len(now)) == 83
