"""Apex's own test matrix, level x loss scale x keep-batchnorm, on the digits ResNet and through Apex's flags."""

import itertools

import pytest

from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.parallel.single import SingleProcess
from image_classification.ResNet.resnet import build_model
from image_classification.runtime import UserError
from tests.helpers.entry import PACKAGE

LEVELS = ("O0", "O1", "O2", "O3")
LOSS_SCALES = (None, "1.0", "128.0", "dynamic")
KEEP_BATCHNORM = (None, "True", "False")
MATRIX = list(itertools.product(LEVELS, LOSS_SCALES, KEEP_BATCHNORM))
LEGAL = [entry for entry in MATRIX if entry[0] != "O1" or entry[2] is None]
STEPS = 3


def load(level, loss_scale, keep_batchnorm):
    argv = [f"-cfg={PACKAGE / 'ResNet/configs/resnet_tiny_digits.yaml'}", "--deterministic", f"--opt-level={level}"]
    argv += [] if loss_scale is None else ["--loss-scale", loss_scale]
    argv += [] if keep_batchnorm is None else ["--keep-batchnorm-fp32", keep_batchnorm]
    argv += [] if level == "O0" else ["-amp_dtype=float16"]  # O0 has no half format
    return load_config([*argv, "-batch_size=16"], build_model)


def train(*entry):
    """Return the loss of each step and the bits of everything that the run has changed."""
    trainer = build_trainer(build_parts(load(*entry), build_model, SingleProcess()))
    trainer.model.train()
    trainer.train_loader.set_epoch(0)
    batches = trainer.train_loader.iterate(0)
    losses = []
    for _ in range(STEPS):
        trainer.train_step(batches, 1)
        trainer.mean.flush()
        losses.append(trainer.mean.last_loss)
    state = trainer.state()
    arrays = {name: value.numpy().tobytes() for part in ("model", "optimizer") for name, value in state[part].items()}
    return losses, trainer.precision.state_dict(), trainer.progress.step, arrays


@pytest.mark.parametrize(("level", "loss_scale", "keep_batchnorm"), LEGAL)
def test_legal_combination_trains_the_digits_resnet_and_repeats_bit_for_bit(level, loss_scale, keep_batchnorm):
    first, second = train(level, loss_scale, keep_batchnorm), train(level, loss_scale, keep_batchnorm)
    assert first == second
    losses, _, applied, _ = first
    assert applied == STEPS and len(set(losses)) == STEPS


@pytest.mark.parametrize(("level", "loss_scale", "keep_batchnorm"), [entry for entry in MATRIX if entry not in LEGAL])
def test_illegal_combination_is_refused_before_any_work(level, loss_scale, keep_batchnorm):
    with pytest.raises(UserError, match="keep_batchnorm_fp32"):
        build_parts(load(level, loss_scale, keep_batchnorm), build_model, SingleProcess())
