"""What a checkpoint's configuration says against the one that it is resumed or evaluated with."""

import pytest

from image_classification import checkpoint
from image_classification.hooks import Hook
from image_classification.runtime import UserError
from tests.helpers.small_runs import config_of, trainer_of

CHANGES = [
    ({"SEED": 5}, "SEED: was 3, now it is 5"),
    ({"data": {"SYNTHETIC_IMAGES": 24}}, "training images of DATA.DATA_PATH /dataset/imagenet/: was 20, now it is 24"),
    ({"data": {"BALANCED": True}}, "DATA.BALANCED: was False, now it is True"),
    ({"train": {"REPEATED_AUG": 2}}, "TRAIN.REPEATED_AUG: was 1, now it is 2"),
]


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
def test_epoch_whose_order_would_change_is_refused_within_it_and_continues_from_its_end(change, words):
    def resume(steps):
        trainer = trainer_of(config_of(**({"train": {"NUM_EPOCHS": 2}} | change)))
        trainer.load_state(state_after(steps), "there")
        return trainer

    with pytest.raises(UserError) as error:
        resume(3)
    assert f"-resume: there: is within epoch 1, and {words}: " in str(error.value)
    assert "resume from the end of an epoch" in str(error.value)
    assert resume(5).progress.batch == 0


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
