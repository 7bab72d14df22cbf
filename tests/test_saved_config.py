"""What a checkpoint's configuration says against the one that it is resumed or evaluated with."""

import dataclasses
import json

import numpy as np
import pytest

from image_classification import checkpoint
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config, to_yaml
from image_classification.evaluate_only import load_resumed_weights
from image_classification.foreign import read_resumed
from image_classification.hooks import Hook
from image_classification.hooks.checkpoints import CheckpointHook
from image_classification.parallel.single import SingleProcess
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError
from image_classification.saved_config import (
    EVALUATION,
    changed_recipe,
    differing_classes,
    of_weights_alone,
    warn_of_other_model,
)
from image_classification.weights import read_weights
from image_classification.weights.safetensors import CONFIG
from image_classification.zoo import create_model, create_transform, find_config, load_model
from tests.helpers.data_samples import write_class_folders
from tests.helpers.small_runs import build_net, config_of, trainer_of

CHANGES = [
    ({"SEED": 5}, "SEED: was 3, now it is 5"),
    ({"data": {"SYNTHETIC_IMAGES": 24}}, "training images of synthetic: was 20, now it is 24"),
    ({"data": {"BALANCED": True}}, "DATA.BALANCED: was False, now it is True"),
    ({"train": {"REPEATED_AUG": 2}}, "TRAIN.REPEATED_AUG: was 1, now it is 2"),
]


@pytest.mark.parametrize(("batch", "accum", "changed"), [
    (2, 2, ""),
    (2, 1, "DATA.BATCH_SIZE was 4, now it is 2"),
    (4, 2, "TRAIN.ACCUM_ITER was 1, now it is 2"),
])  # fmt: skip
def test_recipe_is_the_same_while_the_images_of_a_step_are_as_many(batch, accum, changed):
    before = trainer_of(config_of({"BATCH_SIZE": 4})).state()
    now = trainer_of(config_of({"BATCH_SIZE": batch}, {"ACCUM_ITER": accum}))
    assert changed_recipe(before, now.config, now.units(), "there") == changed
    assert bool(changed_recipe({**before, "units": {}}, now.config, now.units(), "there"))  # of an older version


class StopAfter(Hook):
    def __init__(self, steps):
        self.steps = steps

    def after_update(self, trainer):
        trainer.stop_requested = trainer.progress.step == self.steps < trainer.steps_per_epoch

    def after_evaluation(self, trainer):
        trainer.stop_requested = True


def state_after(steps):
    trainer = trainer_of(config_of(train={"NUM_EPOCHS": 2}), hooks=[StopAfter(steps)])
    trainer.fit()
    return checkpoint.to_arrays(trainer.state())


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_epoch_whose_order_would_change_is_refused_within_it_and_continues_where_all_of_it_is_trained(change, words):
    def resume(steps, **progress):
        trainer = trainer_of(config_of(**({"train": {"NUM_EPOCHS": 2}} | change)))
        state = state_after(steps)
        trainer.load_state(state | {"progress": state["progress"] | progress}, "there")
        return trainer

    with pytest.raises(UserError) as error:
        resume(3)
    assert f"-resume: there: is within epoch 1, and {words}: " in str(error.value)
    assert "resume from the end of an epoch" in str(error.value)
    assert resume(5).progress.batch == 0
    before_evaluation = resume(5, epoch=0, batch=5)
    assert before_evaluation.progress.batch == len(before_evaluation.train_loader)


def test_moved_data_and_other_augmentation_continue_within_the_epoch():
    trainer = trainer_of(config_of(data={"DATA_PATH": "/elsewhere", "HFLIP": 0.0}, train={"NUM_EPOCHS": 2}))
    trainer.load_state(state_after(3), "there")
    assert trainer.progress.batch == 3


def test_state_of_an_older_version_that_does_not_know_its_images_continues():
    state = state_after(3)
    del state["units"]["images"]
    trainer = trainer_of(config_of(train={"NUM_EPOCHS": 2}))
    trainer.load_state(state, "there")
    assert trainer.progress.batch == 3


@pytest.fixture
def animals(tmp_path):
    """Return (a checkpoint of cat, dog, owl; a folder where they are called bee, cat, dog)."""
    for name, classes in (("first", ("cat", "dog", "owl")), ("second", ("bee", "cat", "dog"))):
        for split in ("train", "val"):
            write_class_folders(tmp_path / name / split, dict.fromkeys(classes, 2))
    path = tmp_path / "latest.pdparams"
    checkpoint.save(path, trainer_of(config_on(tmp_path / "first", False)).state())
    return path, tmp_path / "second"


def config_on(folder, is_eval, **model):
    data = {"DATASET": "folder", "DATA_PATH": str(folder), "IMAGE_SIZE": 8, "BATCH_SIZE": 4, "NUM_WORKERS": 0}
    return config_of(data, {"NUM_EPOCHS": 2}, MODEL={"NUM_CLASSES": 3, **model}, EVAL=is_eval)


WORDS = "latest.pdparams: MODEL.CLASS_NAMES: class 0 is cat there and bee in folder at .*second, 3 of 3 differ"


def test_resume_with_other_classes_than_the_checkpoints_is_refused(animals):
    path, folder = animals
    trainer = trainer_of(config_on(folder, False))
    with pytest.raises(UserError, match=f"-resume: .*{WORDS}"):
        trainer.load_state(checkpoint.load(path), path)


def test_evaluation_of_a_checkpoint_of_other_classes_is_refused(animals):
    path, folder = animals
    parts = build_parts(config_on(folder, True, RESUME=str(path)), build_net, SingleProcess())
    with pytest.raises(UserError, match=f"-resume: .*{WORDS}; with -cfg="):
        load_resumed_weights(parts, *read_resumed(parts.config))
    with pytest.raises(UserError, match=f"-pretrained: .*{WORDS}; with -cfg="):
        build_parts(config_on(folder, True, PRETRAINED=str(path)), build_net, SingleProcess())
    build_parts(config_on(folder.parent / "first", True, PRETRAINED=str(path)), build_net, SingleProcess())


def test_fine_tuning_on_other_classes_keeps_the_head_and_says_so(animals, caplog):
    path, folder = animals
    parts = build_parts(config_on(folder, False, PRETRAINED=str(path)), build_net, SingleProcess())
    assert (parts.model.fc.weight.numpy() == checkpoint.load(path)["model"]["fc.weight"]).all()
    assert "class 0 is cat there and bee in folder" in caplog.text and "starts as that of other classes" in caplog.text


def test_best_weights_know_their_classes_and_use_and_nothing_else_of_the_run(animals):
    path, folder = animals
    hook = CheckpointHook(RunFolder(path.parent), frozenset({"fc.weight"}))
    trainer_of(config_on(folder.parent / "first", False), hooks=[hook]).fit()
    weights = path.parent / "best_weights.safetensors"
    with pytest.raises(UserError, match=f"-pretrained: .*{WORDS.replace('latest.pdparams', weights.name)}; with -cfg="):
        build_parts(config_on(folder, True, PRETRAINED=str(weights)), build_net, SingleProcess())
    build_parts(config_on(folder.parent / "first", True, PRETRAINED=str(weights)), build_net, SingleProcess())
    content = weights.read_bytes()
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    assert metadata.keys() == {"format", CONFIG}  # where the data lie is nobody's business
    told = json.loads(metadata[CONFIG])
    assert told["MODEL"] == {"CLASS_NAMES": ["cat", "dog", "owl"]}
    assert told["DATA"].keys() == set(EVALUATION) and told["DATA"]["IMAGENET_MEAN"] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("metadata", [{"config": "MODEL: [{"}, {CONFIG: 3}, {CONFIG: "3"}, {CONFIG: "{}"}, [], "x"])
def test_metadata_of_others_is_no_configuration(tmp_path, metadata):
    path = tmp_path / "w.safetensors"
    array = np.ones(3, "float32")
    header = {"__metadata__": metadata, "w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + array.tobytes())
    file = read_weights(path)
    assert (file.tensors["w"] == array).all()
    assert differing_classes(file.config, config_of(MODEL={"CLASS_NAMES": ["cat"]}), "there") == ""


@pytest.fixture
def eight_heads(tmp_path):
    """Return (words and builder of a small ViT, the checkpoint of one with eight heads and a normalisation of its own).
    """
    words = ["-cfg=vit_tiny_digits", "-device=cpu", "-opts", "MODEL.DEPTH=1"]
    build_vit = find_config("vit_tiny_digits")[1]
    changed = ["MODEL.NUM_HEADS=8", "MODEL.DROP_PATH=0.1", "DATA.IMAGENET_MEAN=[0.2,0.2,0.2]", "DATA.CROP_PCT=0.9"]
    parts = build_parts(load_config([*words, *changed], build_vit), build_vit, SingleProcess())
    path = tmp_path / "latest.pdparams"
    checkpoint.save(path, build_trainer(parts).state())
    return words, build_vit, path


MODEL_WORDS = "MODEL.NUM_HEADS was 8, now it is 4"
DATA_WORDS = "DATA.IMAGENET_MEAN was [0.2, 0.2, 0.2], now it is [0.5, 0.5, 0.5]"


def warnings_of(caplog, call):
    caplog.clear()
    call()
    return [record.getMessage() for record in caplog.records if "was trained otherwise" in record.getMessage()]


def test_weights_of_another_model_of_the_same_shapes_are_used_with_a_warning(eight_heads, caplog):
    words, build_vit, path = eight_heads

    def build(*more):
        return build_parts(load_config([*words, *more], build_vit), build_vit, SingleProcess())

    evaluated = build("DEVICE=cpu", "-eval", f"-resume={path}")
    for use, *expected in (
        (lambda: load_resumed_weights(evaluated, *read_resumed(evaluated.config)), True, True, True),
        (lambda: build("-eval", f"-pretrained={path}"), True, True, True),
        (lambda: build(f"-pretrained={path}"), True, True, False),
        (lambda: load_model("vit_tiny_digits", path, ["MODEL.DEPTH=1"]), True, True, True),
        (lambda: create_model("vit_tiny_digits", path, depth=1), True, False, False),
        (lambda: create_transform("vit_tiny_digits", path), False, True, True),
        (lambda: create_transform("vit_tiny_digits", path, training=True), False, True, False),
    ):
        (line,) = warnings_of(caplog, use)
        assert str(path) in line and "DROP_PATH" not in line and "DATASET" not in line
        assert [words in line for words in (MODEL_WORDS, DATA_WORDS, "DATA.CROP_PCT")] == expected
    alone = of_weights_alone(checkpoint.load(path)["config"], "there")
    for use in (evaluated.config, load_config([*words, f"-pretrained={path}"], build_vit)):
        ((line,), (of_file,)) = (warnings_of(caplog, lambda text=text, use=use: warn_of_other_model(text, use, "there"))
                                 for text in (alone, checkpoint.load(path)["config"]))  # fmt: skip
        assert line == of_file
    same = ["MODEL.NUM_HEADS=8", "DATA.IMAGENET_MEAN=[0.2,0.2,0.2]", "DATA.CROP_PCT=0.9"]
    assert not warnings_of(caplog, lambda: build(*same, "-eval", f"-pretrained={path}"))


def test_weights_for_inference_are_used_without_a_warning(eight_heads, caplog):
    """Another form of the same function, and rates of a training."""
    words, build_vit, path = eight_heads
    saved = checkpoint.load(path)["config"].replace("NUM_HEADS: 8", "NUM_HEADS: 4")
    config = load_config(words, build_vit)
    for argument in ("DEPLOY", "ATTENTION_DROPOUT", "NUM_HEADS"):
        other = dataclasses.replace(config.MODEL, ARGUMENTS=config.MODEL.ARGUMENTS | {argument.lower(): 2})
        used = dataclasses.replace(config, MODEL=other)
        found = warnings_of(caplog, lambda used=used: warn_of_other_model(saved, used, "there", of_data=()))
        assert bool(found) == (argument == "NUM_HEADS")


def test_classes_of_any_script_are_the_same_after_they_were_written():
    config = config_of(MODEL={"NUM_CLASSES": 3, "CLASS_NAMES": ["\U0001f600", "\u00e9", "no"]})
    for text in (to_yaml(config), of_weights_alone(to_yaml(config), "there")):
        assert differing_classes(text, config, "there") == ""


def test_weights_that_know_their_classes_alone_are_used_without_a_warning(caplog):
    text = json.dumps({"MODEL": {"CLASS_NAMES": ["cat"]}})
    config = config_of(MODEL={"NUM_CLASSES": 4})
    for told in (text, None, "MODEL: {of: [another, project"):
        assert not warnings_of(caplog, lambda told=told: warn_of_other_model(told, config, "there"))
