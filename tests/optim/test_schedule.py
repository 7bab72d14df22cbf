"""Learning rates by step against the published numbers of the recipes they come from."""

import dataclasses
import logging
import math

import pytest

from image_classification.config import Config
from image_classification.config.schema import SCHEDULES
from image_classification.optim import build_schedule
from image_classification.runtime import UserError


def train(name="warmupcosine", scheduler=(), **changes):
    """Return a TRAIN section with the given schedule."""
    section = Config().TRAIN
    shape = dataclasses.replace(section.LR_SCHEDULER, NAME=name, **dict(scheduler))
    return dataclasses.replace(section, LR_SCHEDULER=shape, **changes)


def test_warmupcosine_reproduces_paddlevit_rates():
    section = train(NUM_EPOCHS=300, WARMUP_EPOCHS=3, WARMUP_START_LR=1e-6, BASE_LR=0.003, END_LR=5e-4)
    schedule = build_schedule(section, steps_per_epoch=1)
    published = {0: 1e-6, 1: 0.001000667, 2: 0.002000333, 3: 0.003, 4: 0.00299993, 150: 0.001769832, 300: 0.0005}
    for epoch, rate in published.items():
        assert schedule(epoch) == pytest.approx(rate, abs=5e-9)  # published with nine digits


def test_linear_with_matching_start_reproduces_colossalai_factors():
    base, warmup = 1.8e-2, 150
    section = train("linear", NUM_EPOCHS=300, WARMUP_EPOCHS=warmup, BASE_LR=base, WARMUP_START_LR=base / (warmup + 1))
    schedule = build_schedule(section, steps_per_epoch=1)
    factors = {0: 0.006623, 1: 0.013245, 74: 0.496689, 149: 0.993377, 150: 1.0, 151: 0.993333, 299: 0.006667, 300: 0}
    for epoch, factor in factors.items():
        assert schedule(epoch) / base == pytest.approx(factor, abs=5e-7)


def test_linear_past_the_end_stays_at_zero():
    schedule = build_schedule(train("linear", NUM_EPOCHS=2, WARMUP_EPOCHS=1, BASE_LR=1.0), steps_per_epoch=1)
    # The original gives -1, -2, -3 here.
    assert [schedule(step) for step in (1, 2, 3, 50)] == [1.0, 0.0, 0.0, 0.0]


def test_cosine_past_the_end_stays_at_end_lr():
    # Paddle's own cosine rises again past its period.
    schedule = build_schedule(train("cosine", NUM_EPOCHS=10, WARMUP_EPOCHS=3, END_LR=1e-4), steps_per_epoch=4)
    assert [schedule(step) for step in (40, 41, 400)] == pytest.approx([1e-4] * 3, rel=1e-12)


def test_apexstep_reproduces_main_amp_rates():
    section = train("apexstep", NUM_EPOCHS=90, WARMUP_EPOCHS=5, BASE_LR=0.1)
    schedule = build_schedule(section, steps_per_epoch=5004)
    # (epoch, step of the epoch counted from 1) -> rate
    published = {(0, 1): 7.99e-06, (0, 5004): 0.020004, (4, 5003): 0.1, (4, 5004): 0.100004, (5, 1): 0.1, (29, 9): 0.1}
    published |= {(30, 1): 0.01, (59, 5004): 0.01, (60, 1): 0.001, (79, 5004): 0.001, (80, 1): 0.0001, (89, 1): 0.0001}
    for (epoch, step), rate in published.items():
        assert schedule(epoch * 5004 + step - 1) == pytest.approx(rate, rel=5e-4)


@pytest.mark.parametrize(("batch", "world", "rate"), [(224, 2, 0.175), (128, 1, 0.05)])
def test_linear_scaling_multiplies_base_start_and_end_rate(batch, world, rate):
    section = train("linear", NUM_EPOCHS=4, WARMUP_EPOCHS=1, BASE_LR=0.1, WARMUP_START_LR=0.01, END_LR=0.02)
    section = dataclasses.replace(section, LINEAR_SCALED_LR=256)
    schedule = build_schedule(section, steps_per_epoch=2, global_batch_size=batch * world)
    assert schedule(2) == pytest.approx(rate)
    assert schedule(0) == pytest.approx(rate / 10)
    assert schedule(8) == pytest.approx(rate / 5)


def test_warmup_is_linear_in_steps_and_may_be_a_fraction_of_an_epoch():
    section = train("constant", NUM_EPOCHS=2, WARMUP_EPOCHS=0.46, BASE_LR=1.0, WARMUP_START_LR=0.2)
    schedule = build_schedule(section, steps_per_epoch=8)  # 3.68 steps
    assert [schedule(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_step_decays_every_decay_epochs():
    shape = {"DECAY_EPOCHS": 2, "DECAY_RATE": 0.5}
    schedule = build_schedule(train("step", shape, NUM_EPOCHS=6, WARMUP_EPOCHS=0, BASE_LR=1.0), steps_per_epoch=3)
    assert [schedule(step) for step in (0, 5, 6, 11, 12, 17)] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_step_decays_within_an_epoch():
    shape = {"DECAY_EPOCHS": 2.5, "DECAY_RATE": 0.5}
    schedule = build_schedule(train("step", shape, NUM_EPOCHS=6, WARMUP_EPOCHS=0, BASE_LR=1.0), steps_per_epoch=4)
    assert [schedule(step) for step in (0, 9, 10, 19, 20)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_multistep_decays_at_milestones():
    shape = {"MILESTONES": (1, 3), "DECAY_RATE": 0.1}
    schedule = build_schedule(train("multistep", shape, NUM_EPOCHS=5, WARMUP_EPOCHS=0, BASE_LR=1.0), steps_per_epoch=2)
    assert [schedule(step) for step in (0, 1, 2, 5, 6, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_polynomial_follows_its_power():
    section = train("polynomial", {"POWER": 2.0}, NUM_EPOCHS=5, WARMUP_EPOCHS=1, BASE_LR=1.0, END_LR=0.2)
    schedule = build_schedule(section, steps_per_epoch=1)
    expected = [0.2 + 0.8 * (1 - (step - 1) / 4) ** 2 for step in range(1, 6)]
    assert [schedule(step) for step in range(1, 6)] == pytest.approx(expected)


def test_cosine_halfway_is_the_mean_of_both_ends():
    schedule = build_schedule(train(NUM_EPOCHS=10, WARMUP_EPOCHS=0, BASE_LR=0.3, END_LR=0.1), steps_per_epoch=10)
    assert schedule(50) == pytest.approx(0.2)
    assert schedule(25) == pytest.approx(0.2 + 0.1 * math.cos(math.pi / 4))


def test_run_that_ends_inside_the_warmup_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        schedule = build_schedule(train(NUM_EPOCHS=1, WARMUP_EPOCHS=3, BASE_LR=0.3, WARMUP_START_LR=0), 10)
    assert "ends inside the warm-up" in caplog.text
    assert schedule(10) == pytest.approx(0.1)


def test_schedules_are_those_of_the_schema():
    """None falls through to the constant rate."""
    rates = {name: build_schedule(train(name, NUM_EPOCHS=100, WARMUP_EPOCHS=0), 10)(990) for name in SCHEDULES}
    assert [name for name, rate in rates.items() if rate == 0.003] == ["constant"]


def test_epoch_without_steps_is_an_error():
    with pytest.raises(UserError, match="smaller than one batch"):
        build_schedule(train(), 0)


@pytest.mark.parametrize(("name", "scheduler", "epochs", "said"), [
    ("multistep", {}, 30, True), ("multistep", {}, 31, False),  # cut after 30, 60 and 90 epochs
    ("step", {"DECAY_EPOCHS": 3.0}, 3, True), ("step", {"DECAY_EPOCHS": 3.0}, 4, False),
    ("apexstep", {}, 10, True), ("constant", {}, 10, False), ("linear", {}, 1, False),
])  # fmt: skip
def test_rate_that_is_never_cut_says_so(name, scheduler, epochs, said, caplog):
    build_schedule(train(name, scheduler, NUM_EPOCHS=epochs, WARMUP_EPOCHS=0), steps_per_epoch=4)
    assert (f"{name}: the run of {epochs} epochs ends before the rate is cut" in caplog.text) == said
