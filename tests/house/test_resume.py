"""A run that was stopped, saved to disk and resumed by fresh objects ends with the bits of one that was not."""

import functools
import math

import numpy as np
import pytest

from image_classification import checkpoint
from image_classification.hooks import CheckpointHook, Hook
from image_classification.run_folder import RunFolder
from tests.helpers.small_runs import MODES, config_of, trainer_of

# Nine steps in three epochs of five micro-batches, two a step but the last. An infinite loss makes a bad step. The loss
# scale backs off after the second bad step in a row and grows after the third good one after it, and only if nothing is
# forgotten: the run is stopped between the two bad steps, where an epoch ends, and between the good ones, inside one.
BAD_STEPS = (2, 3)
STOPS = {
    "mid-epoch": (5, "before_step", 4),
    "epoch-end": (3, "after_evaluation", 0),
    "last-step": (3, "before_step", 5),  # of an epoch, which is still to be evaluated
    "evaluation": (3, "before_evaluation", 5),  # which does not begin
}
SCALING = {"init_scale": 2.0**10, "growth_interval": 3, "hysteresis": 2}


class Spoil(Hook):
    """Makes the loss of the bad steps infinite, notes what is said of each step, and stops the run after one of them.

    Args:
        stop: how many steps are to be taken, where the signal comes, how many micro-batches of the epoch are done.
    """

    def __init__(self, stop=(None, None, None)):
        self.stop_after, self.moment, _ = stop
        self.losses, self.epochs = [], []

    def before_train(self, trainer):
        plain = trainer.criterion
        trainer.criterion = lambda logits, labels: plain(logits, labels) * (
            math.inf if taken(trainer) in BAD_STEPS else 1.0
        )

    def before_step(self, trainer):
        if self.moment == "before_step" and taken(trainer) + 1 == self.stop_after:
            trainer.request_stop("the test")

    def after_step(self, trainer):
        self.losses.append((taken(trainer), trainer.mean.loss, trainer.mean.top1, trainer.precision.loss_scale))

    def before_evaluation(self, trainer, moment="before_evaluation"):
        if self.moment == moment and taken(trainer) == self.stop_after:
            trainer.request_stop("the test")

    def after_evaluation(self, trainer):
        self.before_evaluation(trainer, "after_evaluation")

    def after_epoch(self, trainer):
        self.epochs.append((trainer.progress.epoch, trainer.mean.loss, trainer.mean.top1, trainer.evaluation["loss"]))


def taken(trainer):
    return trainer.progress.step + trainer.progress.skipped_steps


def make(mode, dtype, spoil, folder=None):
    options = {} if mode == "fp32" else {"DTYPE": dtype, **SCALING}
    if mode in ("O2", "O3"):
        options["loss_scale"] = "dynamic"  # O3's own is static
    train = {"NUM_EPOCHS": 3, "ACCUM_ITER": 2, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.5, "GRAD_CLIP": 1.0}
    config = config_of(train=train, amp={"MODE": mode, **options}, VALIDATE_FREQ=1)
    saving = [CheckpointHook(RunFolder(folder))] if folder else []
    return trainer_of(config, hooks=[spoil, *saving])


@functools.cache
def straight(mode, dtype):
    """Return (what the hook saw, whole state at the end) of a run that nothing stopped."""
    spoil = Spoil()
    trainer = make(mode, dtype, spoil)
    trainer.fit()
    return spoil, bits(trainer.state())


def bits(state):
    """Return a state as {dotted name: bytes or value}, without what differs between two runs of the same command."""
    flat = {}

    def walk(name, value):
        if isinstance(value, dict):
            for key, entry in value.items():
                walk(f"{name}.{key}", entry)
        elif isinstance(value, list):
            for key, entry in enumerate(value):
                walk(f"{name}.{key}", entry)
        else:
            flat[name] = (str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else value

    walk("state", checkpoint.to_arrays(state))
    del flat["state.progress.seconds"]
    return flat


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_resumed_run_has_the_bits_of_the_uninterrupted_one(mode, dtype, stop, tmp_path):
    whole, expected = straight(mode, dtype)
    first = make(mode, dtype, Spoil(stop), tmp_path)
    first.fit()
    path = tmp_path / "latest.pdparams"
    saved = checkpoint.load(path)
    assert saved["progress"]["step"] + saved["progress"]["skipped_steps"] == stop[0]
    assert saved["progress"]["batch"] == stop[2]
    spoil = Spoil()
    second = make(mode, dtype, spoil)
    second.load_state(saved, path)
    second.fit()
    assert spoil.losses == whole.losses[stop[0] :]
    assert spoil.epochs == whole.epochs[-len(spoil.epochs) :]
    got = bits(second.state())
    assert got.keys() == expected.keys()
    assert [name for name, value in got.items() if value != expected[name]] == []


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_stops_of_the_matrix_lie_where_something_could_be_forgotten(mode, dtype):
    """The steps that the test above relies on: skipped ones, a scale that moves after each stop, moving averages."""
    whole, state = straight(mode, dtype)
    assert state["state.progress.skipped_steps"] == len(BAD_STEPS)
    assert state["state.progress.step"] == 9 - len(BAD_STEPS)
    scales = [scale for *_, scale in whole.losses]
    if mode == "fp32":
        assert set(scales) == {1.0}
    else:
        assert scales[2] == 2.0**10 and scales[3] == 2.0**9  # the second bad step, after the first stop
        assert scales[5] == 2.0**9 and scales[6] == 2.0**10  # the third good step, after the second stop
    assert any(name.startswith("state.model.bn._mean") for name in state)
    assert state["state.ema.fc.weight"] != state["state.model.fc.weight"]
