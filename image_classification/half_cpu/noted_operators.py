"""Paddle's operators while a pass is recorded: each is noted as a call, and so is its gradient, by Paddle as well."""

import contextlib
import functools

import paddle

from . import paddle_names
from .arena import Block
from .arguments import CPU, FLOAT32, replace_tensors, scan
from .onednn_memory import contiguous
from .recorded import PyLayer
from .recorded_calls import Refused, pointer_of, tensors_of
from .scope import active, noted, undispatched


class Noted:
    """Paddle's operator whose calls a recorder notes; the backward pass of one that has a gradient is noted as well."""

    def __init__(self, recorder, original, writes):
        self._recorder, self._original, self._writes = recorder, original, writes
        self._name = getattr(original, "__name__", None) or type(original).__name__

    def __call__(self, *args, **kwargs):
        tensors, _ = scan(args, kwargs)
        learns = paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors)
        with as_one(self._recorder):
            return (self._with_gradients if learns else self._without_gradients)(args, kwargs, tensors)

    def _without_gradients(self, args, kwargs, tensors):
        name = self._name
        layouts = [(tensor.shape, tensor.strides) for tensor in tensors]
        result = self._original(*args, **kwargs)
        # one that is empty need not be so the next time
        made = [(index, each) for index, each in enumerate(tensors_of(result)) if not _is_part(each, tensors)]
        made = [] if self._writes else made
        if any(tensor.is_sparse() for tensor in tensors_of(result)):
            self._recorder.refuse(f"a result of {name} is not dense")
        if made or self._writes:
            self._recorder.operator(name, self._original, args, kwargs, made)
        elif len(tensors) > 1 or _slices_by_tensors(args):
            self._recorder.refuse(f"what {name} shows of a tensor depends on its data")
        if layouts != [(tensor.shape, tensor.strides) for tensor in tensors]:
            self._recorder.refuse(f"{name} gives a tensor another shape in place")
        return result

    def _with_gradients(self, args, kwargs, tensors):
        name, call = self._name, Differentiated(self._original)
        results = call.forward(*args, **kwargs)
        made = tensors_of(results)
        if all(one.stop_gradient for one in made):
            return self._without_gradients(args, kwargs, tensors)
        if self._writes or _slices_by_tensors(args):
            self._recorder.refuse(f"{name} writes what has a gradient, or its results depend on data")
            return self._original(*args, **kwargs)
        if len(tensors) == 1 and all(_is_part(one, tensors) for one in made):
            gradient, kept, shown = _view_gradient(self._original, args, kwargs, *tensors), (), made
        else:
            shown = _apart(made, tensors)
            kept = self._recorder.operator(name, call.forward, args, kwargs, list(enumerate(shown)))
            gradient = call.backward
        gradient = functools.partial(_noted_gradient, self._recorder, name, gradient, kept)
        outputs = [one.detach() for one, result in zip(shown, made, strict=True) if not result.stop_gradient]
        found = iter(_Segment.apply(gradient, lambda: outputs, *_learning(tensors)))
        shown = [one if result.stop_gradient else next(found) for one, result in zip(shown, made, strict=True)]
        rest, is_list = iter(shown), isinstance(results, (list, tuple))
        parts, _ = replace_tensors(results if is_list else [results], {}, lambda _: next(rest))
        return type(results)(parts) if is_list else parts[0]


def _learning(tensors):
    """Return those of the tensors that have a gradient, each once."""
    return list({id(tensor): tensor for tensor in tensors if not tensor.stop_gradient}.values())


def _slices_by_tensors(args):
    values = [part for value in args for part in (value if isinstance(value, (list, tuple)) else [value])]
    bounds = [bound for part in values if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    return any(isinstance(bound, paddle.Tensor) for bound in bounds)


def _view_gradient(original, args, kwargs, tensor):
    """Return the function of the gradient of an operator that shows a part of a tensor, by its layout alone."""
    shape, strides, dtype = tensor.shape, tensor.strides, tensor.dtype
    size = Block(tensor).bytes // tensor.element_size()
    nothing = paddle_names.empty([0], dtype, CPU)
    args, kwargs = replace_tensors(args, kwargs, lambda _: nothing)

    def backward(*gradients):
        memory = paddle_names.empty([size], dtype, CPU)
        leaf = paddle_names.separate(paddle_names.as_strided(memory, shape, strides, 0))
        leaf.stop_gradient = False
        call = Differentiated(original)
        here, named = replace_tensors(args, kwargs, lambda _: leaf)
        call.forward(*here, **named)
        return call.backward(*gradients)

    return backward


class Differentiated:
    """An operator whose gradient is computed by Paddle: that of the last call."""

    def __init__(self, original):
        self._original = original
        self._results = self._found = None

    def forward(self, *args, **kwargs):
        """Return what the operator returns; the gradients end at its arguments."""
        tensors = _learning(scan(args, kwargs)[0])
        self._found = [None] * len(tensors)
        with paddle.enable_grad():
            start = paddle_names.empty([1], FLOAT32, CPU)
            start.stop_gradient = False
            places = {id(tensor): place for place, tensor in enumerate(tensors)}
            leaves = [_Start.apply(self._found, place, start, tensor.detach) for place, tensor in enumerate(tensors)]
            args, kwargs = replace_tensors(
                args, kwargs, lambda tensor: leaves[places[id(tensor)]] if id(tensor) in places else tensor
            )
            self._results = self._original(*args, **kwargs)
        return self._results

    def backward(self, *gradients):
        """Return the gradients of what has one, None for what the results do not depend on."""
        results, found = [one for one in tensors_of(self._results) if not one.stop_gradient], self._found
        self._results = self._found = None
        with paddle.enable_grad():
            end = End.apply(lambda: gradients, *results)
        end.backward()  # paddle.grad cannot be called while it runs
        return found


class End(PyLayer):
    """The end of a forward pass. The gradients of its results are given ones, of which Paddle would make copies."""

    @staticmethod
    def forward(ctx, gradients, *results):
        ctx.gradients = gradients
        return paddle_names.empty([1], FLOAT32, CPU)

    @staticmethod
    def backward(ctx, _):
        return tuple(ctx.gradients())


class _Start(PyLayer):
    """A tensor, whose gradient is found; at a leaf it would be copied."""

    @staticmethod
    def forward(ctx, found, index, start, make):
        ctx.found, ctx.index, ctx.start = found, index, start.detach()
        return make()

    @staticmethod
    def backward(ctx, gradient):
        ctx.found[ctx.index] = gradient
        return ctx.start


def _noted_gradient(recorder, name, function, kept, *gradients):
    gradients = tuple(one if one is None else contiguous(one) for one in gradients)  # Paddle's copy is slow
    with as_one(recorder):
        found = function(*gradients)
        made = [one for one in found if one is not None]
        if not all(one.is_dense() for one in made):
            raise Refused(f"the gradient of {name} is not dense")
        if not all(_is_part(one, gradients) for one in made):  # or else there is nothing to do
            made = _apart(made, gradients)
            recorder.operator(name, function, gradients, {}, list(enumerate(made)), kept)
    rest = iter(made)
    return tuple(None if one is None else next(rest) for one in found)


class _Segment(PyLayer):
    """What an operator computed, with a backward pass that is noted."""

    @staticmethod
    def forward(ctx, gradient, made, *tensors):
        made = made()
        ctx.set_materialize_grads(False)
        ctx.gradient, ctx.layouts = gradient, [(one.shape, one.dtype) for one in made]
        return tuple(made)

    @staticmethod
    def backward(ctx, *gradients):
        """Return the gradients; those of results that nobody reads are zeros which are noted, unlike the engine's."""
        pairs = zip(gradients, ctx.layouts, strict=True)
        return ctx.gradient(*(
            noted(paddle_names.full, shape, 0.0, dtype, CPU) if one is None else one for one, (shape, dtype) in pairs
        ))  # fmt: skip


@contextlib.contextmanager
def as_one(recorder):
    """Neither note nor dispatch what is called inside."""
    active.recorder = active.watcher = None
    try:
        with undispatched():
            yield
    finally:
        active.recorder = active.watcher = recorder


def _is_part(result, tensors):
    """Return whether a result is a view of one of the tensors."""
    start = pointer_of(result)
    blocks = (Block(tensor) for tensor in tensors if pointer_of(tensor))
    return 0 not in result.shape and (not start or any(block.start <= start < block.end for block in blocks))


def _apart(results, tensors):
    """Return the results without gradients, copies of those that are views of the tensors."""
    with paddle.no_grad():
        return [one.clone() if _is_part(one, tensors) else one.detach() for one in results]
