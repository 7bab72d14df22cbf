"""What a pass changes beside its results: the numbers of buffers, and where the random generators stand."""

import hashlib
import random

import numpy as np
import paddle

from . import paddle_names
from .recorded_calls import pointer_of
from .scope import undispatched


class State:
    """The numbers of a model's buffers and the states of the random generators, to return to."""

    def __init__(self, buffers):
        with undispatched():
            self._buffers = [
                (one, paddle_names.inplace_version(one), one.detach().clone()) for one in buffers if pointer_of(one)
            ]
        self._random = paddle.get_rng_state(), random.getstate(), np.random.get_state()
        self._tracked = paddle_names.tracked_generators().get_states_tracker()

    def noted(self):
        """Return the buffers that were written and count as written: a backward pass that needs them is refused."""
        return [one for one, version, _ in self._buffers if paddle_names.inplace_version(one) != version]

    def written(self):
        """Return the buffers that were written: Paddle's batch norms do not count their writes."""
        noted = {id(one) for one in self.noted()}
        return [one for one, _, value in self._buffers if id(one) in noted or bits(one) != bits(value)]

    def restore(self):
        """Let all be what it was. What was not written stays as it is: a backward pass may wait for it."""
        written = {id(one) for one in self.written()}
        with undispatched():
            for buffer, _, value in self._buffers:
                if id(buffer) in written:
                    paddle_names.assign_out_(value, buffer)
        paddle_state, python_state, numpy_state = self._random
        paddle.set_rng_state(paddle_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        paddle_names.tracked_generators().set_states_tracker(self._tracked)


def statistics(parameters):
    """Return those that may be running statistics."""
    return [weight for weight in parameters if weight.ndim == 1]


def mark(tensor):
    """Return what is another one for other numbers."""
    return hashlib.sha256(bits(tensor)).digest()


def marks_of_state(buffers):
    """Return the marks of buffers, and of what Paddle's random generator gives next."""
    with undispatched():
        return [*map(mark, filter(pointer_of, buffers)), mark(paddle.rand([4]))]


def bits(tensor):
    """Return the numbers of a tensor, to be compared."""
    return tensor.numpy().tobytes()
