"""Random generators are saved and restored."""

import random

import numpy as np
import paddle

from image_classification import runtime


def draw():
    """Return numbers of each generator. NumPy makes normal ones by two and keeps the second for the next draw."""
    of_numpy = [np.random.normal(), *np.random.rand(2)]
    return random.random(), of_numpy, paddle.rand([3]).tolist(), paddle.randn([2]).tolist()


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


def test_seed_again_gives_the_same_numbers_and_another_seed_others():
    """From every generator: one that nobody seeds gives other numbers each time, too."""
    runtime.seed_everything(1)
    first = draw()
    runtime.seed_everything(1)
    assert draw() == first
    runtime.seed_everything(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))


def test_rng_state_of_another_kind_of_device_leaves_the_generator_of_this_one():
    """Its numbers say nothing here; those of Python and NumPy are the same anywhere."""
    runtime.seed_everything(5)
    state = runtime.rng_state() | {"device": "another"}
    expected = draw()
    runtime.seed_everything(6)
    own = paddle.rand([3]).tolist()
    runtime.seed_everything(6)
    runtime.set_rng_state(state)
    assert paddle.rand([3]).tolist() == own
    assert draw()[:2] == expected[:2]
