"""The calls that a recorded pass consists of: of kernels, where memory is all that changes, and of Paddle's operators."""

import ctypes
import functools
import math

import paddle

from . import paddle_names
from .arena import Block
from .arguments import FLOAT32, replace_tensors, scan
from .compiled_library import addresses
from .recorded import PyLayer
from .scope import active

_CPU = paddle.CPUPlace()


class Refused(Exception):
    """A pass that cannot be played again; the message says why."""


class Kernel:
    """A call of a compiled function or a primitive; `pointers` are the places of the arguments that may be pointers.

    Attributes:
        uses: [(block, offset, argument)] of its memory; the argument is None for memory that is always the same one.
    """

    def __init__(self, call, arguments, pointers, find):
        self.name = getattr(call, "__name__", None) or call.implementation
        self._call, self._arguments = call, arguments
        self._lists = {}
        self.uses = []
        for index in pointers:
            value = arguments[index]
            if type(value) is int:
                self.uses.append((*find(value, self.name), index))
            elif getattr(value, "_type_", None) is ctypes.c_void_p:
                self._lists[index] = places = [find(pointer, self.name) for pointer in value]
                self.uses += ((*place, None) for place in places)
        # the result and what it may take the place of, if this call is the last that reads it
        places = getattr(call, "replaced", ())
        self.replaced = [use for index in places for use in self.uses if use[2] == index]

    def moved(self):
        """Return the call with each pointer where its memory is now."""
        arguments = list(self._arguments)
        for block, offset, index in self.uses:
            if index is not None:
                arguments[index] = block.place + offset
        for index, places in self._lists.items():
            arguments[index] = addresses(*(block.place + offset for block, offset in places))
        return functools.partial(self._call, *arguments)


class Operator:
    """A call of one of Paddle's operators, on tensors of the same layouts in the memory of the played pass.

    Args:
        results: [(index, tensor)] of its results that get memory of their own.
    """

    replaced = ()

    def __init__(self, name, function, args, kwargs, results, find):
        self.name, self._function = name, function
        self.uses, self._places = [], {}
        self._args, self._kwargs = replace_tensors(args, kwargs, functools.partial(self._place, find))
        self._made = []
        for index, tensor in results:
            block = layout = None
            if pointer_of(tensor):
                block, layout = find(tensor.data_ptr(), name)[0], (tensor.strides, tensor.dtype)
                self.uses.append((block, 0, None))
            self._made.append((index, block, tensor.shape, layout))

    def _place(self, find, tensor):
        """Return what stands for a tensor, whose memory is free before the pass is played, among the arguments."""
        if not pointer_of(tensor):
            return tensor
        block, offset = find(tensor.data_ptr(), self.name)
        self.uses.append((block, offset, None))
        if block.given:
            return tensor
        stand_in = paddle_names.empty([0], FLOAT32, _CPU)
        self._places[id(stand_in)] = block, offset, tensor.shape, tensor.strides, tensor.dtype, tensor.stop_gradient
        return stand_in

    def moved(self):
        """Return the call with each tensor where its memory is now."""
        args, kwargs = replace_tensors(self._args, self._kwargs, self._moved)
        made = [
            (index, shape, block and block.tensor(0, shape, *layout)) for index, block, shape, layout in self._made
        ]
        return functools.partial(self._run, functools.partial(self._function, *args, **kwargs), made)

    def _moved(self, stand_in):
        if id(stand_in) not in self._places:
            return stand_in
        block, offset, shape, strides, dtype, stop_gradient = self._places[id(stand_in)]
        tensor = block.tensor(offset, shape, strides, dtype)
        tensor.stop_gradient = stop_gradient
        return tensor

    def _run(self, call, made):
        results = tensors_of(call())
        for index, shape, place in made:
            if results[index].shape != shape:
                raise Refused(f"the shape that {self.name} returns depends on its data")
            if place is not None:
                paddle_names.assign_out_(results[index], place)


class Noted:
    """Paddle's operator whose calls a recorder notes; the backward pass of one that has a gradient is noted as well."""

    def __init__(self, recorder, original, writes):
        self._recorder, self._original, self._writes = recorder, original, writes

    def __call__(self, *args, **kwargs):
        args, kwargs = replace_tensors(args, kwargs, lambda tensor: tensor)  # lists grow when the call is over
        tensors, _ = scan(args, kwargs)
        if paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors):
            return self._with_gradients(args, kwargs, tensors)
        return self._without_gradients(args, kwargs, tensors)

    def _without_gradients(self, args, kwargs, tensors):
        name = self._original.__name__
        layouts = [(tensor.shape, tensor.strides) for tensor in tensors]
        result = self._original(*args, **kwargs)
        # one that is empty need not be so the next time
        made = [(index, each) for index, each in enumerate(tensors_of(result)) if not _is_part(each, tensors)]
        made = [] if self._writes else made
        if any(tensor.is_sparse() for tensor in tensors_of(result)):
            self._recorder.reason = f"a result of {name} is not dense"
        if made or self._writes:
            self._recorder.operator(name, self._original, args, kwargs, made)
        elif len(tensors) > 1 or _slices_by_tensors(args):
            self._recorder.reason = f"what {name} shows of a tensor depends on its data"
        if layouts != [(tensor.shape, tensor.strides) for tensor in tensors]:
            self._recorder.reason = f"{name} gives a tensor another shape in place"
        return result

    def _with_gradients(self, args, kwargs, tensors):
        scope, active.scope = active.scope, None  # what is called here is noted as one
        try:
            return self._differentiated(args, kwargs, tensors)
        finally:
            active.scope = scope

    def _differentiated(self, args, kwargs, tensors):
        name, own = self._original.__name__, {id(tensor): _leaf(tensor) for tensor in tensors}
        call = Differentiated(self._original)
        args_of_leaves = replace_tensors(args, kwargs, lambda tensor: own[id(tensor)])
        results = call.forward(*args_of_leaves[0], **args_of_leaves[1])
        made = tensors_of(results)
        if all(one.stop_gradient for one in made):
            return self._without_gradients(args, kwargs, tensors)
        if all(any(_is_all_of(tensor, one) for tensor in tensors) for one in made):
            return self._original(*args, **kwargs)  # its gradient is a view as well
        is_list = isinstance(results, (list, tuple))
        if self._writes or is_list and len(made) != len(results) or any(one.stop_gradient for one in made):
            self._recorder.reason = f"{name} writes what has a gradient, or has a result without one"
            return self._original(*args, **kwargs)
        made = _apart(made, tensors)
        self._recorder.operator(name, call.forward, *args_of_leaves, list(enumerate(made)))
        learning = [tensor for tensor in tensors if not tensor.stop_gradient]
        found = _Segment.apply(self._recorder, name, call, made, *learning)
        return type(results)(found) if is_list else found[0]


def _slices_by_tensors(args):
    values = [part for value in args for part in (value if isinstance(value, (list, tuple)) else [value])]
    bounds = [bound for part in values if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    return any(isinstance(bound, paddle.Tensor) for bound in bounds)


def _is_all_of(tensor, view):
    """Return whether a result is another view of all of a tensor."""
    return pointer_of(tensor) == pointer_of(view) and math.prod(tensor.shape) == math.prod(view.shape)


def _leaf(tensor):
    """Return a tensor of the same memory, whose gradient ends there."""
    leaf = tensor.detach()
    leaf.stop_gradient = tensor.stop_gradient
    return leaf


class Differentiated:
    """An operator whose gradient is computed by Paddle: that of the last call."""

    def __init__(self, original):
        self._original = original
        self.results = self._leaves = None

    def forward(self, *args, **kwargs):
        """Return what the operator returns for tensors whose gradients end there."""
        self._leaves = [tensor for tensor in scan(args, kwargs)[0] if not tensor.stop_gradient]
        with paddle.enable_grad():
            self.results = self._original(*args, **kwargs)
        return self.results

    def backward(self, *gradients):
        """Return the gradients of what has one, None for what the results do not depend on."""
        results, self.results = tensors_of(self.results), None
        return paddle.grad(results, self._leaves, list(gradients), allow_unused=True)


class _Segment(PyLayer):
    """What an operator computed, with a backward pass that is noted."""

    @staticmethod
    def forward(ctx, recorder, name, call, made, *tensors):
        ctx.recorder, ctx.name, ctx.call = recorder, name, call
        return tuple(made)

    @staticmethod
    def backward(ctx, *gradients):
        found = ctx.call.backward(*gradients)
        made = iter(_apart([one for one in found if one is not None], gradients))
        made = [None if one is None else next(made) for one in found]
        ctx.recorder.operator(ctx.name, ctx.call.backward, gradients, {}, list(enumerate(filter(_is_there, made))))
        return tuple(made)


def _is_there(tensor):
    return tensor is not None


def _is_part(result, tensors):
    """Return whether a result is a view of one of the tensors."""
    start = pointer_of(result)
    blocks = (Block(tensor) for tensor in tensors if pointer_of(tensor))
    return 0 not in result.shape and (not start or any(block.start <= start < block.end for block in blocks))


def _apart(results, tensors):
    """Return the results without gradients, copies of those that are views of the tensors."""
    with paddle.no_grad():
        return [one.clone() if _is_part(one, tensors) else one.detach() for one in results]


def tensors_of(result):
    """Return the tensors that an operator returned."""
    return scan(result if isinstance(result, (list, tuple)) else [result], {})[0]


def pointer_of(tensor):
    """Return where a tensor begins, 0 for one without memory: an empty one, or the state of an LSTM's dropout."""
    try:
        return 0 if 0 in tensor.shape else tensor.data_ptr()
    except RuntimeError:
        return 0
