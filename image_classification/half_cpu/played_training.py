"""A recorded training step as one operator of the inputs and the weights of a model."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import paddle

from . import paddle_names
from .compiled_library import CompiledError
from .dispatch import dispatch
from .noted_operators import End
from .recorded import PyLayer
from .recorded_calls import Refused
from .recorded_pass import Pass
from .recording import filled, flat
from .saved import own_result, save, saved
from .scope import active
from .state import State


class Training:
    """A recorded forward pass and its backward pass; call it with inputs of the recorded shapes.

    Args:
        played: its results are those of the model, then the gradients of the weights; its inputs are those of the
            model, then the gradients of the results.
        forward_steps: how many of its steps are the forward pass.
        outline: what the model returned, see `recording.outline`.
        weights: those that have a gradient.
        buffers: those that a forward pass writes and notes, those that it writes, and what a backward pass reads of
            them and of the weights.
        model: whose passes these are.

    Attributes:
        written: the buffers that a forward pass writes.
        shares_weights: whether several gradients of a weight are summed.
        attributes: those of the layers that it holds for.
        reason: why a backward pass came that needed the layers, or None.
    """

    def __init__(
        self, played: Pass, forward_steps: int, outline: Any, weights: list, buffers: tuple, model: Callable
    ):
        self.played, self._forward_steps = played, forward_steps
        self._outline, self._outputs = outline, len(flat(outline))
        self._weights, self._model = weights, model
        self._noted, self.written, self._read_later = buffers
        self.reason: str | None = None
        self._inputs_read_later, self._results_read_later = (
            [number for number, slot in enumerate(slots) if slot.is_used_from(forward_steps)]
            for slots in (played.inputs[: len(played.inputs) - self._outputs], played.results[: self._outputs])
        )
        # a result got no gradient, or the shape of another one is that of its data
        self._may_stop = self._outputs > 1 or not all(map(played.calls.is_kernel, range(len(played))))
        self._waiting: Callable[[], Any] = lambda: None
        self.attributes: Any = None
        self.shares_weights = False

    def is_free(self):
        """Return whether no result of a call waits for its backward pass."""
        return self._waiting() is None

    def __call__(self, inputs):
        state = State(self.written) if self._may_stop else None
        try:
            results = _Played.apply(self, state, *inputs, *self._weights)
        except (Refused, CompiledError):  # the layers begin again
            if state is not None:
                state.restore()
            raise
        return filled(self._outline, [results] if isinstance(results, paddle.Tensor) else results)

    def begin(self):
        """Return what says that a backward pass may follow, while it lives."""
        token = _Token()
        self._waiting = weakref.ref(token)
        return token

    @contextlib.contextmanager
    def ending(self, token):
        """Begin the backward pass, and end it.

        Raises:
            RuntimeError: it came before.
        """
        if self._waiting() is not token:
            raise RuntimeError("half_cpu.Replayed has one backward pass for each call, and this one was made before: "
                               "call the model itself for more")  # fmt: skip
        try:
            yield
        finally:
            self._waiting = lambda: None

    def kept(self, inputs, results):
        """Return what a backward pass reads, given inputs and results of the forward pass."""
        of_inputs = [inputs[number] for number in self._inputs_read_later]
        return *of_inputs, *(own_result(results[number]) for number in self._results_read_later), *self._read_later

    def forward(self, inputs):
        """Return the results of the model in new tensors."""
        slots = self.played.inputs[: len(self.played.inputs) - self._outputs], self.played.results[: self._outputs]
        results = self._play(*slots, inputs, 0, self._forward_steps)
        for buffer in self._noted:
            paddle_names.bump_version(buffer)
        return results

    def backward(self, gradients):
        """Return the gradients of the weights in new tensors."""
        inputs, results = self.played.inputs[-self._outputs :], self.played.results[self._outputs :]
        # The engine sees to their format.
        gradients = [slot.laid(one) for slot, one in zip(inputs, gradients, strict=True)]
        return self._play(inputs, results, gradients, self._forward_steps, len(self.played))

    def by_layers(self, inputs, gradients, before, scope):
        """Add the gradients of the weights as the layers give them: where some results get none, weights that only
        these results need stay without one.

        Args:
            before: the State before the forward pass.
            scope: that of the dispatch of the forward pass.
        """
        now = State(self.written)
        before.restore()
        try:
            with dispatch.again(scope), paddle.enable_grad():
                results = flat(self._model(*inputs))
                pairs = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
                end = End.apply(lambda: [one for _, one in pairs], *[one for one, _ in pairs])
            end.backward()
        finally:
            now.restore()

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
    def forward(ctx, recorded, before, *tensors):
        ctx.recorded, ctx.given, ctx.inputs = recorded, len(tensors), tensors[: len(tensors) - len(recorded._weights)]
        ctx.scope, ctx.before, ctx.written = active.scope, before, [*map(paddle_names.inplace_version, ctx.inputs)]
        ctx.set_materialize_grads(False)
        results = recorded.forward(ctx.inputs)
        save(ctx, *recorded.kept(ctx.inputs, results))
        ctx.token = recorded.begin()
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        saved(ctx)
        recorded = ctx.recorded
        with recorded.ending(ctx.token):
            if any(one is None for one in gradients):
                recorded.reason = "a result got no gradient"
            else:
                try:
                    return *[None] * len(ctx.inputs), *recorded.backward(gradients)
                except Refused as error:
                    recorded.reason = str(error)
            if ctx.written != [*map(paddle_names.inplace_version, ctx.inputs)]:
                raise RuntimeError("an input that the backward pass of the layers needs was written in place since")
            recorded.by_layers(ctx.inputs, gradients, ctx.before, ctx.scope)
        return (None,) * ctx.given
