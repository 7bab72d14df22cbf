"""A recorded training step as one operator of the inputs and the weights of a model."""

import weakref
from collections.abc import Callable
from typing import Any

import paddle

from . import paddle_names
from .recorded import PyLayer
from .recording import Pass, flat, mapped
from .saved import save, saved


class Training:
    """A recorded forward pass and its backward pass; call it with inputs of the recorded shapes.

    Args:
        played: its results are those of the model, then the gradients of the weights; its inputs are those of the
            model, then the gradients of the results.
        forward_steps: how many of its steps are the forward pass.
        structure: what the model returned, with something in place of each tensor.
        weights: those that have a gradient.
        written: the buffers that a forward pass writes.
    """

    def __init__(self, played: Pass, forward_steps: int, structure: Any, weights: list, written: list):
        self.played, self._forward_steps = played, forward_steps
        self._structure, self._outputs = structure, len(flat(structure))
        self._weights, self._written = weights, written
        self._waiting: Callable[[], Any] = lambda: None

    def is_free(self):
        """Return whether no result of a call waits for its backward pass."""
        return self._waiting() is None

    def __call__(self, inputs):
        results = _Played.apply(self, *inputs, *self._weights)
        rest = iter([results] if isinstance(results, paddle.Tensor) else results)
        return mapped(lambda _: next(rest), self._structure)

    def begin(self):
        """Return what says that a backward pass may follow, while it lives."""
        token = _Token()
        self._waiting = weakref.ref(token)
        return token

    def end(self, token):
        """Note that the backward pass comes.

        Raises:
            RuntimeError: it came before.
        """
        if self._waiting() is not token:
            raise RuntimeError("half_cpu.Replayed has one backward pass for each call, and this one was made before: "
                               "call the model itself for more")  # fmt: skip
        self._waiting = lambda: None

    def forward(self, inputs):
        """Return the results of the model in new tensors."""
        slots = self.played.inputs[: len(self.played.inputs) - self._outputs], self.played.results[: self._outputs]
        results = self._play(*slots, inputs, 0, self._forward_steps)
        for buffer in self._written:
            paddle_names.bump_version(buffer)
        return results

    def backward(self, gradients):
        """Return the gradients of the weights in new tensors."""
        inputs, results = self.played.inputs[-self._outputs :], self.played.results[self._outputs :]
        gradients = [one.contiguous() for one in gradients]  # the engine sees to their format
        return self._play(inputs, results, gradients, self._forward_steps, len(self.played))

    def _play(self, inputs, results, tensors, first, last):
        for slot, tensor in zip(inputs, tensors, strict=True):
            self.played.read(slot, tensor)
        new = [self.played.write(slot) for slot in results]
        self.played.play(first, last)
        return [self.played.written(slot, tensor) for slot, tensor in zip(results, new, strict=True)]


class _Token:
    """Lives as long as something may ask for a backward pass."""


class _Played(PyLayer):
    @staticmethod
    def forward(ctx, recorded, *tensors):
        ctx.recorded, ctx.inputs = recorded, len(tensors) - len(recorded._weights)
        save(ctx, *tensors)
        results = recorded.forward(tensors[: ctx.inputs])
        ctx.token = recorded.begin()
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        saved(ctx)
        ctx.recorded.end(ctx.token)
        found = ctx.recorded.backward(gradients)
        return *[None] * ctx.inputs, *found
