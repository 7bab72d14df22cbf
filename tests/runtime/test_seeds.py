"""Random generators are saved and restored."""

import random

import numpy as np
import paddle

from image_classification import runtime


def draw():
    return random.random(), np.random.rand(2).tolist(), paddle.rand([3]).tolist(), paddle.randn([2]).tolist()


def test_rng_state_restored_repeats_every_generator():
    runtime.seed_everything(5)
    draw()
    state = runtime.rng_state()
    expected = draw()
    draw()
    runtime.set_rng_state(state)
    assert draw() == expected


def test_rng_state_is_plain_data():
    """A checkpoint must not hold objects of Paddle's: they would tie it to a version and to a pickle."""
    state = runtime.rng_state()
    assert isinstance(state["python"], str)
    assert all(isinstance(value, int | str) for generator in state["paddle"] for value in generator.values())


def test_seeds_differ_give_different_numbers():
    runtime.seed_everything(1)
    first = draw()
    runtime.seed_everything(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))
