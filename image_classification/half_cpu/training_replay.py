"""Training passes without layers: the calls of kernels that a forward and a backward pass were made of, made again.

What holds for a pass of an evaluation (`replay.py`) holds for both passes of a training: from the second batch of a
shape on, layers, operators and the engine of gradients lead to the same calls with other pointers.
"""

import contextlib
import hashlib
import logging
import random
import threading
from typing import Any

import numpy as np
import paddle

from . import paddle_names
from .arguments import FLOATING
from .branches import branched, forget_branches
from .compiled_library import CompiledError
from .huge_pages import ask
from .noted_operators import End, as_one
from .played_training import Training
from .recorded_calls import Refused, pointer_of
from .recording import Recorder, flat, mapped
from .replay import NOTHING, has_hooks
from .scope import active, undispatched

logger = logging.getLogger(__name__)

RECORDED = 4  # the call of a shape that records, the first time; each time that something was it is twice as late
KEPT = 2  # shapes
_LARGE = 1 << 25  # bytes


class Replayed:
    """A model to be trained: call it as the model; from the fifth call of a shape on without its layers.

        model = half_cpu.Replayed(network)
        with half_cpu.dispatch(policy):
            loss = criterion(model(images), labels)
        loss.backward()

    The promise: what the layers do depends on their mode, on the shapes and formats of their inputs, on the numbers of
    their parameters and buffers and on Paddle's random numbers, and on nothing else that changes. Results, gradients,
    running statistics and random numbers are bit for bit those of the layers. Where passes cannot be recorded the log
    says why, and the layers run; they run as well without gradients or a dispatch, where an input asks for a gradient,
    where hooks hang on layers, and while the result of a call waits for its backward pass, of which there is one.

    Args:
        model: it returns a tensor, or a list, tuple or dict of tensors.
    """

    def __init__(self, model: paddle.nn.Layer):
        self._model = model
        self._layers = model.sublayers(include_self=True)
        self._known: dict[Any, Any] = {}  # what is known of a key: how often it came, its passes, or 0 for none
        self._wait = RECORDED

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return `model(*inputs, **options)`; with options, or what is no tensor, by its layers."""
        if options or not _can_record(inputs):
            return self._model(*inputs, **options)
        weights: list[paddle.Tensor] = []
        buffers = self._model.buffers()
        for weight in self._model.parameters():  # running statistics, too
            (buffers if weight.stop_gradient else weights).append(weight)
        key = self._key(inputs, weights, buffers)
        known = self._known.pop(key, 1)
        if isinstance(known, int) and known >= self._wait:
            self._wait *= 2
            known = self._record(inputs, weights, buffers)
        elif isinstance(known, int):
            known += known > 0
        self._known[key] = known
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        if isinstance(known, Training) and known.is_free():
            try:
                return known(inputs)
            except Refused as error:
                self._known[key] = self._refuse(error)
            except CompiledError:
                pass  # an index out of range: Paddle words the error
        return self._model(*inputs)

    def _key(self, inputs, weights, buffers):
        scope: Any = active.scope
        return (
            threading.get_ident(), paddle_names.hooks_ever(), scope.policy_cast, scope.backend.name,
            tuple(layer.training for layer in self._layers),
            tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs),
            tuple((pointer_of(weight), weight.dtype) for weight in weights),
            tuple(map(pointer_of, buffers)),
        )  # fmt: skip

    def _record(self, inputs, weights, buffers):
        """Return the passes for inputs of these shapes, or 0. They are believed where they are closed (see
        `Recorder.returns`) and, played with NaN in all memory of their own, give the bits of the layers."""
        name, shapes = type(self._model).__name__, [list(tensor.shape) for tensor in inputs]
        try:
            if has_hooks(self._model):
                raise Refused("it has hooks")
            state, frozen = _State(buffers), active.frozen
            active.frozen = None  # nothing that was made of the weights before
            try:
                try:
                    recorded = _recorded(self._model, inputs, weights, buffers, state)
                except Differs as error:  # perhaps the engine summed gradients of a weight
                    if not error.shared:
                        raise
                    recorded = _recorded(self._model, inputs, weights, buffers, state, error.shared)
            finally:
                active.frozen = frozen
                state.restore()
        except Refused as error:
            return self._refuse(error)
        if recorded.played.bytes > _LARGE:
            ask()  # for memory that it has and the layers had not
        logger.info("half_cpu: %s is trained for %s without its layers, by %d calls in %d MiB",
                    name, shapes, len(recorded.played), recorded.played.bytes >> 20)  # fmt: skip
        return recorded

    def _refuse(self, error):
        logger.info("half_cpu: the layers of %s are trained one by one: %s", type(self._model).__name__, error)
        return 0


def _can_record(inputs):
    if active.scope is None or active.recorder is not None or not paddle.is_grad_enabled():
        return False
    return all(isinstance(one, paddle.Tensor) and one.stop_gradient and one.is_contiguous() for one in inputs)


class _State:
    """The numbers of a model's buffers, and where the random generators stand."""

    def __init__(self, buffers):
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers if pointer_of(buffer)]
        self._random = paddle.get_rng_state(), random.getstate(), np.random.get_state()

    def restore(self):
        for buffer, value in self._buffers:
            paddle_names.assign_out_(value, buffer)
        paddle_state, python_state, numpy_state = self._random
        paddle.set_rng_state(paddle_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _both_passes(model, inputs, weights, gradients_of):
    """Return (what a model returns, the gradients of its weights, None for those without one)."""
    result = mapped(lambda tensor: tensor, model(*inputs))
    gradients, ends = gradients_of(flat(result)), flat(result)
    if active.recorder is not None:  # a result may be read by a later layer, too, or be two
        ends = [branched(active.scope, "end", [one], {}, [one])[0][0] for one in ends]
    with undispatched():
        return result, paddle.grad([End.apply(lambda: gradients, *ends)], weights, allow_unused=True)


class Differs(Refused):
    """Passes that do not give the results of the layers. `shared`: ids of the weights that have several readers."""

    def __init__(self, shared):
        super().__init__("played again, they give other results")
        self.shared = shared


def _recorded(model, inputs, weights, buffers, state, shared=frozenset()):
    """Return the recorded passes; `state.restore` makes it what it was before each of them.

    Raises:
        Differs: they are not those of the layers.
        Refused: there are none.
    """
    own = [tensor.clone() for tensor in inputs]
    recorder = Recorder([*weights, *buffers], own, shared)
    versions = [buffer.inplace_version for buffer in buffers]
    layouts: list[tuple] = []
    forward_steps = 0

    def gradients_of(results):
        nonlocal forward_steps
        if any(one.stop_gradient or one.dtype not in FLOATING or not one.is_contiguous() for one in results):
            raise Refused("a result has no gradient or is not dense")
        forward_steps = len(recorder.steps)
        layouts.extend((one.shape, one.dtype) for one in results)
        with as_one(recorder):
            gradients = [_random(*layout) for layout in layouts]
        for gradient in gradients:
            recorder.input(gradient)
        return gradients

    with recorder.recording(), _whole_again(weights):
        result, found = _both_passes(model, own, weights, gradients_of)
    written = [buffer for buffer, version in zip(buffers, versions, strict=True) if buffer.inplace_version != version]
    learning = [number for number, gradient in enumerate(found) if gradient is not None]
    recorder.returns([*flat(result), *(found[number] for number in learning)])
    del result, found  # neither these nor what the layers make now are in memory beside the played pass
    state.restore()
    result, found = _both_passes(model, inputs, weights, lambda results: [_random(*layout) for layout in layouts])
    expected = [*map(_mark, [*flat(result), *(found[number] for number in learning)]), *_marks_of_state(buffers)]
    structure = mapped(lambda tensor: NOTHING, result)
    del result, found
    state.restore()
    played = recorder.finish()
    recorded = Training(played, forward_steps, structure, [weights[number] for number in learning], written)
    with played.poisoned():
        try:
            results = [*recorded.forward(inputs), *recorded.backward([_random(*layout) for layout in layouts])]
        except Exception as error:  # of an operator that got what was not written, such as indices
            raise Refused(f"played again, they fail: {error}") from error
    if expected != [*map(_mark, results), *_marks_of_state(buffers)]:
        raise Differs(recorder.shared() - shared)
    return recorded


@contextlib.contextmanager
def _whole_again(weights):
    """Forget in the end who read the weights inside."""
    try:
        yield
    finally:
        for weight in weights:
            forget_branches(weight)


def _random(shape, dtype):
    numbers = np.random.default_rng(0).standard_normal(shape, "float32") / 64
    with undispatched():
        return paddle.to_tensor(numbers).astype(dtype)


def _mark(tensor):
    return hashlib.sha256(tensor.numpy()).digest()


def _marks_of_state(buffers):
    with undispatched():
        return [*map(_mark, filter(pointer_of, buffers)), _mark(paddle.rand([4]))]
