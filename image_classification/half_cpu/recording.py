"""The calls of kernels and operators that a forward pass is made of, and the memory that they use."""

import contextlib
import ctypes
import functools
import pickle
import random
from bisect import bisect_right
from collections import OrderedDict
from typing import Any

import numpy as np
import paddle

from . import paddle_names
from .arena import Block, arena, merged
from .arguments import replace_tensors, scan
from .compiled_library import addresses
from .references import References
from .scope import active

LARGEST = 1 << 30  # bytes: beyond, the layers cost little beside their kernels


class Refused(Exception):
    """A pass that cannot be played again; the message says why."""


class Kernel:
    """A call of a compiled function or a primitive; `pointers` are the places of the arguments that may be pointers."""

    def __init__(self, call, arguments, pointers):
        self.name = getattr(call, "__name__", None) or call.implementation
        self._call, self._arguments = call, arguments
        self._pointers = [index for index in pointers if type(arguments[index]) is int]
        self._lists = [index for index in pointers if getattr(arguments[index], "_type_", None) is ctypes.c_void_p]
        self.addresses = [arguments[index] for index in self._pointers]
        self.addresses += (pointer for index in self._lists for pointer in arguments[index])
        self.moves = True
        # where the result is and what it may take the place of, if this call is the last that reads it
        self.replaced = [arguments[index] for index in getattr(call, "replaced", ())]

    def places(self, start, end):
        """Return [(argument, offset)] of what lies in some memory, or None where a list has it."""
        if any(start <= pointer < end for index in self._lists for pointer in self._arguments[index] if pointer):
            return None
        found = ((index, self._arguments[index] - start) for index in self._pointers)
        return [(index, offset) for index, offset in found if 0 <= offset < end - start]

    def moved(self, place_of):
        """Return the call with each pointer where its memory is now."""
        arguments = list(self._arguments)
        for index in self._pointers:
            arguments[index] = place_of(arguments[index])
        for index in self._lists:
            arguments[index] = addresses(*map(place_of, arguments[index]))
        return functools.partial(self._call, *arguments)


class Operator:
    """A call of one of Paddle's operators. Those of its results that have memory of their own are copied there."""

    moves, replaced = False, ()

    def __init__(self, original, args, kwargs, made):
        self.name = original.__name__
        self._call, self._made = functools.partial(original, *args, **kwargs), made
        tensors = [*scan(args, kwargs)[0], *(place for _, place in made)]
        self.addresses = list(filter(None, map(_pointer, tensors)))

    def places(self, start, end):
        return None if any(start <= pointer < end for pointer in self.addresses) else []

    def moved(self, place_of):
        return self

    def __call__(self):
        results = _tensors(self._call())
        for index, place in self._made:
            if results[index].shape != place.shape:
                raise Refused(f"the shape that {self.name} returns depends on its data")
            if 0 not in place.shape:
                paddle_names.assign_out_(results[index], place)


class Noted:
    """Paddle's operator whose calls a recorder notes."""

    def __init__(self, recorder, original, writes):
        self._recorder, self._original, self._writes = recorder, original, writes

    def __call__(self, *args, **kwargs):
        args, kwargs = replace_tensors(args, kwargs, lambda tensor: tensor)  # lists grow when the call is over
        tensors, _ = scan(args, kwargs)
        layouts = [(tensor.shape, tensor.strides) for tensor in tensors]
        result = self._original(*args, **kwargs)
        self._recorder.operator(self._original, args, kwargs, tensors, _tensors(result), self._writes)
        if layouts != [(tensor.shape, tensor.strides) for tensor in tensors]:
            self._recorder.reason = f"{self._original.__name__} gives a tensor another shape in place"
        return result


class Recorder:
    """Notes the calls of one forward pass and the memory that they use, which is kept: no address means two things.

    Args:
        constants: tensors whose content is not the pass's own: weights, and what was made of them.
        inputs: dense tensors, of whose content each pass gets another.
    """

    def __init__(self, constants, inputs):
        self.reason = None
        self._inputs, self._bytes = inputs, 0
        self._steps: list[Kernel | Operator] = []
        self._blocks = [Block(tensor, True) for tensor in (*constants, *inputs) if _pointer(tensor)]

    @contextlib.contextmanager
    def recording(self):
        """Note what this thread computes until this ends."""
        drawn = _draws()
        try:
            _past_operators().replace(self)
            active.recorder = self
            yield
        finally:
            active.recorder = None
            _past_operators().restore(self)
        if drawn != _draws():
            self.reason = "Python draws random numbers"

    def noted(self, original, writes):
        """Return Paddle's operator, noting its calls; `writes`: whether it writes to what it is given."""
        return original if isinstance(original, Noted) else Noted(self, original, writes)

    def allocated(self, tensor):
        """Note memory that a kernel or an operator got.

        Raises:
            Refused: it is too much; the rest of the pass would be for nothing.
        """
        if self._bytes > LARGEST:
            raise Refused(f"its intermediate results take more than {LARGEST >> 20} MiB")
        self._blocks.append(Block(tensor, False, len(self._steps)))
        self._bytes += self._blocks[-1].end - self._blocks[-1].start

    def constant(self, tensor):
        """Note what a kernel made of no tensor."""
        self._blocks.append(Block(tensor, True, len(self._steps)))

    def called(self, call, arguments, pointers):
        """Note a call of a kernel."""
        self._steps.append(Kernel(call, arguments, pointers))

    def operator(self, original, args, kwargs, tensors, results, writes):
        """Note a call of an operator, unless its results are views of the `tensors` that it was given."""
        known = [Block(tensor, False) for tensor in tensors if _pointer(tensor)]

        def is_new(tensor):  # one that is empty need not be so the next time
            start = _pointer(tensor)
            return start and not any(block.start <= start < block.end for block in known) or 0 in tensor.shape

        made = [] if writes else [(index, each) for index, each in enumerate(results) if is_new(each)]
        full = [tensor for _, tensor in made if 0 not in tensor.shape]
        if any(tensor.is_sparse() for tensor in results) or not all(tensor.is_contiguous() for tensor in full):
            self.reason = f"a result of {original.__name__} is not dense"
        if not made and not writes and (len(tensors) > 1 or _slices_by_tensors(args)):
            self.reason = f"what {original.__name__} shows of a tensor depends on its data"
        if made or writes:
            for tensor in full:
                self.allocated(tensor)
            self._steps.append(Operator(original, args, kwargs, made))

    def finish(self, result: Any) -> "Pass":
        """Return the recorded pass, of which `result` is the result: it is closed if each pointer lies in a constant,
        an input or memory that was noted, and if Python read no tensor.

        Raises:
            Refused: it is not.
        """
        results: list[paddle.Tensor] = []
        mapped(results.append, result)
        if self.reason:
            raise Refused(self.reason)
        blocks = merged(self._blocks)
        starts = [block.start for block in blocks]

        def block_of(pointer, name):
            block = blocks[max(0, bisect_right(starts, pointer) - 1)]
            if not block.start <= pointer < block.end:
                raise Refused(f"{name} uses memory of unknown origin")
            return block

        def place_of(pointer):
            block = block_of(pointer, "a step")
            return pointer if block.stays else block.place + pointer - block.start

        for number, step in enumerate(self._steps):
            for pointer in step.addresses:
                block = block_of(pointer, step.name)
                if number < block.had:  # it was something else's then
                    raise Refused(f"{step.name} uses memory of unknown origin")
                block.first = number if block.first is None else block.first
                block.last = number
                block.stays |= not step.moves
        for tensor in results:
            block_of(tensor.data_ptr(), "the result").stays = True
        for number, step in enumerate(self._steps):
            if step.replaced and all(step.replaced):
                made, read = (block_of(pointer, step.name) for pointer in step.replaced)
                alike = step.replaced == [made.start, read.start] and made.end - made.start == read.end - read.start
                once = [block_of(pointer, step.name) for pointer in step.addresses].count(read) == 1
                if alike and once and number == made.first == read.last and not made.stays and not read.stays:
                    made.take_place(read)
        holder = arena([block for block in blocks if not block.stays and block.first is not None])
        calls = [step.moved(place_of) for step in self._steps]
        pointers = [tensor.data_ptr() for tensor in results]
        readers = [self._readers(tensor, pointers) for tensor in self._inputs]
        return Pass(calls, self._inputs, readers, result, [block for block in blocks if block.stays], holder)

    def _readers(self, tensor, results):
        """Return [(step, argument, offset)] of what reads an input, or None where that is not all that has it."""
        block = Block(tensor, True)
        places = [step.places(block.start, block.end) for step in self._steps]
        if None in places or any(block.start <= pointer < block.end for pointer in results):
            return None
        return [(number, *place) for number, found in enumerate(places) for place in found]


def _method_past_operators(original):
    """Return the wrapper of a method by which Python reads or writes a tensor itself."""

    @functools.wraps(original)
    def method(*args, **kwargs):
        if active.recorder is not None:
            active.recorder.reason = "Python reads or writes a tensor, on which its path may depend"
        return original(*args, **kwargs)

    return method


@functools.cache
def _past_operators():
    """Return the references to the methods that are watched while a pass is recorded."""
    methods = {name: getattr(paddle_names.Tensor, name) for name in paddle_names.PAST_OPERATORS}
    return References([], {name: _method_past_operators(method) for name, method in methods.items()})


def _draws():
    """Return where the random generators of Python and NumPy stand."""
    return random.getstate(), pickle.dumps(np.random.get_state())


def _pointer(tensor):
    """Return where a tensor begins, 0 or None for one without memory, such as the state of an LSTM's dropout."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return None


def mapped(function, result):
    """Return what a model returned with `function(tensor)` in place of each tensor.

    Raises:
        Refused: it is neither a tensor nor a list, tuple, named tuple or dictionary of such.
    """
    kind = type(result)
    if isinstance(result, paddle.Tensor):
        return function(result)
    if kind is dict or kind is OrderedDict:
        return kind((key, mapped(function, value)) for key, value in result.items())
    make = kind if kind is list or kind is tuple else getattr(kind, "_make", None)
    if make is None:
        raise Refused("a result is no tensor")
    return make(mapped(function, value) for value in result)


def _tensors(result):
    return scan(result if isinstance(result, (list, tuple)) else [result], {})[0]


def _slices_by_tensors(args):
    values = [part for value in args for part in (value if isinstance(value, (list, tuple)) else [value])]
    bounds = [bound for part in values if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    return any(isinstance(bound, paddle.Tensor) for bound in bounds)


class Pass:
    """A recorded forward pass, which belongs to a thread; call it with inputs of the recorded shapes. `bytes` are
    those of its intermediate results that are in use at a time."""

    def __init__(self, calls, inputs, readers, result, blocks, arena):
        self._calls, self._inputs, self._readers, self._result = calls, inputs, readers, result
        self._blocks, self._arena, self.bytes = blocks, arena, arena.shape[0]

    def __call__(self, inputs):
        scope, active.scope = active.scope, None
        try:
            for own, readers, given in zip(self._inputs, self._readers, inputs, strict=True):
                if readers is None:
                    paddle_names.assign_out_(given, own)
                for number, argument, offset in readers or ():
                    self._read(number, argument, given.data_ptr() + offset)
            for call in self._calls:
                call()
            return mapped(paddle.Tensor.clone, self._result)
        finally:
            active.scope = scope

    def _read(self, number, argument, pointer):
        call = self._calls[number]
        self._calls[number] = functools.partial(call.func, *call.args[:argument], pointer, *call.args[argument + 1 :])

    def poison(self):
        """Write NaN wherever a pass has to write before it reads."""
        for block in self._blocks:
            if not block.given:
                ctypes.memset(block.start, 255, block.end - block.start)
        ctypes.memset(self._arena.data_ptr(), 255, self._arena.shape[0])
