"""The digits ViT and ResNet on the test device: losses and steps are the CPU's but for a rounding per operator.

Every step begins from the weights that the CPU had there. Two trainings on their own drift apart in jumps: the sign of
one ReLU's input that turns is a difference in the loss of 1e-4 or more (tests/helpers/golden.py).
"""

import numpy as np
import paddle
import pytest

from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.hooks import Hook
from image_classification.parallel.single import SingleProcess
from tests.device.conftest import DEVICE
from tests.device.test_programs import FULL, RECIPES
from tests.helpers.model_zoo import PACKAGE, builder
from tests.helpers.random_rounding import ROUNDING, round_at_random

STEPS = 20


class Steps(Hook):
    """Begins each step from given weights, its own without any; keeps them, the loss and what the step changed."""

    def __init__(self, starts):
        self.given, self.starts, self.losses, self.changes = starts, [], [], []

    def before_step(self, trainer):
        if self.given:
            trainer.precision.load_model_state_dict(trainer.model, self.given[len(self.starts)])
        self.starts.append(self.weights_of(trainer))
        if len(self.starts) == STEPS:
            trainer.request_stop("the last step to compare")

    def after_step(self, trainer):
        trainer.mean.flush()
        self.losses.append(trainer.mean.last_loss)
        before, after = self.starts[-1], self.weights_of(trainer)
        self.changes.append(np.concatenate([(after[name] - before[name]).ravel() for name in before]))

    def weights_of(self, trainer):
        return {name: value.numpy() for name, value in trainer.precision.model_state_dict(trainer.model).items()}


def first_steps(device, family, mode, dtype, starts=(), seed=None):
    build_model = builder(PACKAGE / family)
    # a scale that does not overflow in the first steps: a skipped one would only be a step less to compare
    scale = "AMP.loss_scale=1024" if mode.startswith("O") else "AMP.init_scale=1024"
    words = [f"-cfg={PACKAGE / family / 'configs' / RECIPES[family]}.yaml", "-device", device, "-amp_mode", mode,
             "-amp_dtype", dtype, "-opts", "DATA.NUM_WORKERS=0", scale]  # fmt: skip
    parts = build_parts(load_config(words, build_model), build_model, SingleProcess())
    if seed is not None:
        round_at_random(parts.model, ROUNDING[dtype], seed)
    trainer, steps = build_trainer(parts), Steps(starts)
    trainer.add_hooks([steps])
    trainer.fit()
    assert trainer.progress.skipped_steps == 0 and len(steps.losses) == STEPS
    return steps


def distance(ours, theirs):
    """Return (root mean square of the losses' differences, the same of the lengths of the changes' differences)."""
    changes = [np.linalg.norm(one - other) for one, other in zip(ours.changes, theirs.changes, strict=True)]
    return [float(np.sqrt(np.mean(np.square(each)))) for each in (np.subtract(ours.losses, theirs.losses), changes)]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "dtype"), FULL)
@pytest.mark.parametrize("family", RECIPES)
def test_first_twenty_steps_are_those_of_the_cpu_but_for_a_rounding_per_operator(board, family, mode, dtype):
    run = family, mode, dtype
    paddle.set_device("cpu")
    reference = first_steps("cpu", *run)
    disturbed = [distance(first_steps("cpu", *run, reference.starts, seed), reference) for seed in range(3)]
    paddle.set_device(DEVICE)
    losses, changes = distance(first_steps(DEVICE, *run, reference.starts), reference)
    most = np.max(disturbed, axis=0)
    print(f"{family} {mode} {dtype}: losses {losses:.1e} of {most[0]:.1e}, changes {changes:.1e} of {most[1]:.1e}")
    assert losses <= most[0]
    assert changes <= most[1]
