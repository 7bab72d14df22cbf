"""Training passes without layers: the calls of kernels that a forward and a backward pass were made of, made again.

What holds for a pass of an evaluation (`replay.py`) holds for both passes of a training: from the second batch of a
shape on, layers, operators and the engine of gradients lead to the same calls with other pointers.
"""

import collections
import contextlib
import itertools
import logging
import threading
from typing import Any

import numpy as np
import paddle

from . import paddle_names
from .arguments import FLOATING
from .attributes import Attributes
from .branches import branched, forget_branches
from .compiled_library import CompiledError
from .huge_pages import ask
from .kernels import REFERENCE
from .noted_operators import End, as_one
from .onednn_binary import Fork
from .onednn_memory import are_rows, as_images, is_settled
from .played_training import Training
from .recorded import PyLayer
from .recorded_calls import Refused, in_a_line, pointer_of
from .recording import Recorder, copies, flat, mapped, outline
from .replay import has_hooks
from .scope import active, undispatched
from .state import State, mark, marks_of_state
from .watched_calls import Calls, changes_nothing

logger = logging.getLogger(__name__)

RECORDED = 4  # the call of a shape that records, the first time; each time that something was it is twice as late
KEPT = 2  # shapes
_LARGE = 1 << 25  # bytes
_SUMS = "the engine sums gradients of several calls, of three and more in an order that is not that of a played pass"
_RECORDING = threading.RLock()  # Paddle has one list of the gradients that `paddle.grad` is asked for


class Replayed:
    """A model to be trained: call it as the model; from the fifth call of a shape on without its layers.

        model = half_cpu.Replayed(network)
        with half_cpu.dispatch(policy):
            loss = criterion(model(images), labels)
        loss.backward()

    The promise: what the layers do depends on their attributes (see `Attributes`), on the shapes and formats of their
    inputs, on the numbers of these, of parameters and of buffers, on Paddle's random numbers, and on nothing else that
    changes. Results, gradients, running statistics and random numbers are bit for bit those of the layers. Where passes
    cannot be recorded, or no dispatch is open around a call, the log says why, and the layers run; they run as well
    without gradients, where an input asks for a gradient, where hooks hang on layers, and while the result of a call
    waits for its backward pass, of which there is one.

    Args:
        model: it returns a tensor, or a list, tuple or dict of tensors.
    """

    def __init__(self, model: paddle.nn.Layer):
        self._model = model
        self._known: dict[Any, Any] = {}  # what is known of a key: how often it came, its passes, or 0 for none
        self._wait, self._calls, self._told = RECORDED, Calls(), set[str]()
        self._at_once, self._is_left, self._new = 1, False, 0

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return `model(*inputs, **options)`; with options, or what is no tensor, by its layers."""
        if options or self._is_left or not _can_record(inputs):
            are_here = all(isinstance(one, paddle.Tensor) and one.place.is_cpu_place() for one in inputs)
            if active.scope is None and paddle.is_grad_enabled() and are_here:  # inside is too late
                self._refuse("no dispatch, as of a precision's forward_context, is open around the call")
            return self._model(*inputs, **options)
        self._at_once = max(self._at_once, 1 + self._waiting())
        if self._at_once > 2:
            return self._summed()(*inputs)
        layers = self._model.sublayers(include_self=True)
        parameters, buffers = paddle_names.parameters_and_buffers(layers)
        weights = [weight for weight in parameters if not weight.stop_gradient]
        # Running statistics are among them, also where somebody asked for the gradients of all parameters.
        buffers += [weight for weight in parameters if weight.stop_gradient or weight.ndim == 1]
        attributes = Attributes(layers)
        key = self._key(attributes, inputs, weights, buffers)
        known = first = self._known.pop(key, 1)
        self._new = self._new + 1 if first == 1 else 0  # calls in a row of which nothing was known
        if self._new > 2 * RECORDED and not self._told:
            self._refuse("its attributes, inputs or the places of its weights are others in each call")
        if isinstance(known, int) and known >= self._wait and not self._waiting():
            self._wait *= 2
            known = self._record(inputs, weights, buffers, layers, attributes)
        elif isinstance(known, int):
            known += known > 0
        self._known[key] = known
        for old in list(self._known)[:-KEPT]:
            self._known.pop(old, None)  # or another thread did
        if isinstance(known, Training) and known.reason:
            self._known[key] = known = self._refuse(known.reason)
        if isinstance(known, Training):
            if not known.is_free():
                return self._summed()(*inputs) if known.shares_weights else self._watched(inputs)
            try:
                return known(inputs)
            except Refused as error:
                self._known[key] = known = self._refuse(str(error))
            except CompiledError:
                return self._model(*inputs)  # an index out of range: Paddle words the error
        if not known:
            return self._model(*inputs)
        try:
            before = attributes if self._calls.are_known() else None
            others = [weight for weight in weights if weight.ndim != 1]  # those may be statistics, see above
            with changes_nothing([*inputs, *others], layers, before, first == 1):
                result = self._watched(inputs)
        except Refused as error:
            self._known[key] = self._refuse(str(error))
        return result

    def __reduce__(self):
        return Replayed, (self._model,)  # copied and pickled without what was recorded

    def _watched(self, inputs):
        result = self._model(*inputs)
        self._calls.watch(result)
        return result

    def _waiting(self):
        """Return how many calls wait for their backward pass."""
        passes = [known for known in list(self._known.values()) if isinstance(known, Training)]
        return self._calls.waiting() + sum(not one.is_free() for one in passes)

    def _summed(self):
        """Return the model, from now on left to its layers."""
        self._is_left = True
        self._known.clear()
        self._refuse(_SUMS)
        return self._model

    def _key(self, attributes, inputs, weights, buffers):
        scope: Any = active.scope
        ids = [*map(id, inputs)]
        return (
            threading.get_ident(), scope.policy_cast, scope.backend.name, paddle.get_default_dtype(), attributes.marks,
            tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs), tuple(map(ids.index, ids)),
            tuple(map(_place, weights)), tuple(map(_place, buffers)),
        )  # fmt: skip

    def _record(self, inputs, weights, buffers, layers, attributes):
        """Return the passes for inputs of these shapes, or 0. They are believed where they are closed (see
        `Recorder.returns`) and, played with NaN in all memory of their own, give the bits of the layers."""
        name, shapes = type(self._model).__name__, [list(tensor.shape) for tensor in inputs]
        try:
            if has_hooks(self._model):
                raise Refused("it has hooks")
            kept, active.frozen = active.frozen, None  # nothing that was made of the weights before
            try:
                with _RECORDING, changes_nothing((), layers, attributes, True):
                    recorded = _recorded_alone(self._model, inputs, weights, buffers, attributes.unknown(layers))
            finally:
                active.frozen = kept
            if recorded.shares_weights and self._at_once > 1:
                raise Refused(_SUMS)
        except Refused as error:
            return self._refuse(str(error))
        except Exception as error:  # of what runs with layers all the same
            if any(word in str(error) for word in ("KeyboardInterrupt", "SystemExit")):
                raise  # Paddle's engine makes an error of what interrupts a backward pass
            return self._refuse(f"recorded, it fails: {in_a_line(error)}")
        recorded.attributes = attributes  # which live as long: no other object is taken for one of them
        if recorded.played.bytes > _LARGE:
            ask()  # for memory that it has and the layers had not
        logger.info("half_cpu: %s is trained for %s without its layers, by %d calls in %d MiB",
                    name, shapes, len(recorded.played), recorded.played.bytes >> 20)  # fmt: skip
        return recorded

    def _refuse(self, why):
        if why not in self._told:
            self._told.add(why)
            logger.info("half_cpu: the layers of %s are trained one by one: %s", type(self._model).__name__, why)
        return 0


def _place(tensor):
    return id(tensor), pointer_of(tensor), tuple(tensor.shape), tuple(tensor.strides), tensor.dtype


def _can_record(inputs):
    scope = active.scope
    if scope is None or scope.backend.name == REFERENCE:  # its gradients may have gradients
        return False
    if active.recorder is not None or not paddle.is_grad_enabled():
        return False
    return all(isinstance(one, paddle.Tensor) and one.stop_gradient and one.is_contiguous() for one in inputs)


def _both_passes(model, inputs, weights, gradients_of):
    """Return (what a model returns, the gradients of its weights, None for those without one)."""
    result = mapped(lambda tensor: tensor, model(*inputs))
    gradients, ends = gradients_of(flat(result)), flat(result)
    if active.recorder is not None:  # a result may be read by a later layer, too, or be two
        ends = [branched(active.scope, "end", [one], {}, [one])[0][0] for one in ends]
        if active.recorder.reason:
            raise Refused(active.recorder.reason)
    with undispatched():
        found = paddle.grad([End.apply(lambda: gradients, *ends)], weights, allow_unused=True)
    if active.recorder is not None:
        _check_graph(ends)
    return result, found


def _check_graph(ends):
    """Raise `Refused` for results whose gradients may come one after the other, as they have nothing in common, and
    where an operator that is not noted, such as a PyLayer of the model's own, reads what others read too. Others get
    views of it, whose gradients a kernel sums."""
    reached = [{node: (name, targets) for node, name, targets in paddle_names.backward_edges(end)} for end in ends]
    if any(one.keys().isdisjoint(other) for one, other in itertools.combinations(reached, 2)):
        raise Refused("results have no operator in common")
    edges = list({node: edge for part in reached for node, edge in part.items()}.values())
    kinds: list[type] = [Fork, *PyLayer.__subclasses__()]
    own = {f"GradNodePyLayer_{kind.__name__}" for kind in kinds}
    readers = collections.Counter(target for _, targets in edges for target in targets)
    if any(readers[target] > 1 for name, targets in edges if name not in own for target in targets):
        raise Refused("autograd sums the gradients of a result, unseen")


class Shared(Exception):
    """Passes in which several operators read a weight. `weights`: the ids of such weights."""

    def __init__(self, weights):
        super().__init__(weights)
        self.weights = weights


def _recorded_alone(model, inputs, weights, buffers, others):
    """Return the recorded passes; buffers, other tensors and random generators are what they were."""
    state = State([*buffers, *others])
    try:
        try:
            return _recorded(model, inputs, weights, buffers, state)
        except Shared as error:
            state.restore()
            return _recorded(model, inputs, weights, buffers, state, error.weights)
    finally:
        state.restore()


def _recorded(model, inputs, weights, buffers, state, shared=frozenset()):
    """Return the recorded passes; `state.restore` makes it what it was before each of them.

    Raises:
        Shared: the engine summed gradients of weights, unseen.
        Refused: there are none.
    """
    own = copies(inputs)
    recorder = Recorder([*weights, *buffers], own, shared)
    layouts: list[tuple] = []
    forward_steps = 0

    def gradients_of(results):
        nonlocal forward_steps
        if any(one.stop_gradient or one.dtype not in FLOATING or not is_settled(one) for one in results):
            raise Refused("a result has no gradient or is not dense")
        forward_steps = len(recorder.steps)
        layouts.extend((one.shape, one.dtype, are_rows(one)) for one in results)
        with as_one(recorder):
            gradients = [_random(*layout) for layout in layouts]
        for gradient in gradients:
            recorder.input(gradient)
        return gradients

    with recorder.recording(), _whole_again(weights):
        result, found = _both_passes(model, own, weights, gradients_of)
    if recorder.shared() - shared:
        raise Shared(recorder.shared())
    noted, written = state.noted(), state.written()
    learning = [number for number, gradient in enumerate(found) if gradient is not None]
    recorder.returns([*flat(result), *(found[number] for number in learning)])
    recorder.copies_little()
    read_later = recorder.read_from(forward_steps, [*weights, *buffers])
    del result, found  # neither these nor what the layers make now are in memory beside the played pass
    state.restore()
    own = copies(inputs)
    result, found = _both_passes(model, own, weights, lambda results: [_random(*layout) for layout in layouts])
    expected = [*map(mark, [*flat(result), *(found[number] for number in learning)]), *marks_of_state(buffers)]
    empty = outline(result)
    del result, found
    state.restore()
    played = recorder.finish()
    learning = [weights[number] for number in learning]
    recorded = Training(played, forward_steps, empty, learning, (noted, written, read_later), model)
    recorded.shares_weights = bool(shared)
    with played.poisoned():
        try:
            results = [*recorded.forward(inputs), *recorded.backward([_random(*layout) for layout in layouts])]
        except Exception as error:  # of an operator that got what was not written, such as indices
            raise Refused(f"played again, they fail: {in_a_line(error)}") from error
    if expected != [*map(mark, results), *marks_of_state(buffers)]:
        raise Refused("played again, they give other results")
    return recorded


@contextlib.contextmanager
def _whole_again(weights):
    """Forget in the end who read the weights inside."""
    try:
        yield
    finally:
        for weight in weights:
            forget_branches(weight)


def _random(shape, dtype, by_rows):
    # As large as those of float16 with a loss scale: gradients that become 0 on their way compare nothing.
    numbers = np.random.default_rng(0).standard_normal(shape, "float32") * 16
    with undispatched():
        tensor = paddle.to_tensor(numbers.transpose(0, 2, 3, 1) if by_rows else numbers).astype(dtype)
        return as_images(tensor) if by_rows else tensor
