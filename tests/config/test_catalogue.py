"""YAML files by name, and a family's keys without its import."""

import inspect
from pathlib import Path

import pytest

from image_classification.config import find_yaml, load_config, preview_config, variants
from image_classification.config.catalogue import name_of, shared, signature_of
from image_classification.config.yaml_text import load_yaml
from image_classification.runtime import UserError
from tests.helpers.model_zoo import CONFIGS, FOLDERS, builder

BASE_OF_ALL = sorted(shared().values()) + CONFIGS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_signature_that_is_read_is_the_one_that_runs(folder):
    read, real = signature_of(folder.name), builder(folder)
    assert read.__module__ == real.__module__
    expected = {name: (part.kind, part.annotation) for name, part in inspect.signature(real).parameters.items()}
    found = {name: (part.kind, part.annotation) for name, part in inspect.signature(read).parameters.items()}
    assert found == expected
    assert all(part.annotation is not part.empty for part in inspect.signature(real).parameters.values())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_preview_of_a_command_line_is_its_configuration(folder):
    for path in (folder / "configs").glob("*_digits.yaml"):
        words = [f"-cfg={path.stem}", "-amp", "-lr=1e-3", "-opts", "SEED=7"]
        assert preview_config(words) == preview_config(words, folder.name) == load_config(words, builder(folder))


def test_a_name_is_that_of_one_file():
    names = [*variants(), *shared()]
    assert len(names) == len(set(names)) == len(BASE_OF_ALL)


def test_file_comes_before_a_name_and_lies_beside_the_one_that_names_it(tmp_path, monkeypatch):
    name = next(iter(variants()))
    assert find_yaml(name) == variants()[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_text("SEED: 1\n")
    assert find_yaml(name, tmp_path / "folder") == tmp_path / "folder" / name
    (tmp_path / name).mkdir()  # a folder is no YAML
    monkeypatch.chdir(tmp_path)
    assert find_yaml(name) == variants()[name]


def test_base_by_name_is_read_and_a_wrong_one_is_named_with_the_nearest(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("BASE: [resnet_tiny_digits, naive]\nSEED: 5\n")
    config = preview_config([f"-cfg={path}"])
    assert (config.SEED, config.AMP.MODE, config.MODEL.NAME) == (5, "naive", "resnet_tiny_digits")
    path.write_text("BASE: resnet_tiny_digit\n")
    with pytest.raises(UserError, match=rf"BASE of {path}: .*resnet_tiny_digit: .*did you mean resnet_tiny_digits\?"):
        preview_config([f"-cfg={path}"])


@pytest.mark.parametrize(("typed", "hint"), [
    ("resnet5", "did you mean resnet50?"),
    ("vit_base", "did you mean vit_base_patch"),
    ("resnet50.a1_in1k", "did you mean resnet50? a1_in1k is the name of weights, which -pretrained takes"),
    ("configs/resnet50.yaml", "did you mean resnet50? Its program is in image_classification/ResNet"),
    ("finetun", "did you mean finetune?"),
    ("VIT_TINY_DIGITS", "did you mean vit_tiny_digits?"),
    ("ResNet-50", "did you mean resnet50?"),
    ("zzzz", "tools/list_models.py lists the models"),
])  # fmt: skip
def test_wrong_name_is_answered_with_what_it_may_be(typed, hint):
    with pytest.raises(UserError) as caught:
        find_yaml(typed)
    assert str(caught.value).startswith(f"-cfg: {Path(typed)}: no such file") and hint in str(caught.value)


def test_own_file_without_its_ending_is_answered_with_the_whole_name(tmp_path):
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(UserError, match=r"mine: no such file; did you mean .*/mine\.yaml\?"):
        find_yaml(str(tmp_path / "mine"))


def test_run_folder_means_its_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("BASE: resnet_tiny_digits\nSEED: 5\n")
    assert preview_config([f"-cfg={tmp_path}"]).SEED == 5


@pytest.mark.parametrize("path", BASE_OF_ALL, ids=lambda path: path.stem)
def test_base_of_the_projects_files_is_a_name(path):
    """A path would lead elsewhere from an installed package."""
    bases = load_yaml(path.read_text(), str(path)).get("BASE", [])
    for base in [bases] if isinstance(bases, str) else bases:
        assert base in variants() or base in shared()


def test_name_of_a_model_is_that_of_the_last_layer_that_has_one():
    layers = [{"MODEL": {"NAME": "base"}}, {"MODEL": {"NAME": "own"}}, {"MODEL": {}}, {"MODEL": 3}, {}]
    assert name_of([("a file", layer) for layer in layers]) == "own"
