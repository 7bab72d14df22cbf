"""The calls of a recorded pass: of kernels, where memory is all that changes, and of Paddle's operators."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from . import paddle_names
from .arguments import CPU, FLOAT32, replace_tensors, scan
from .compiled_library import addresses


class Refused(Exception):
    """A pass that cannot be played again; the message says why."""


def in_a_line(error):
    """Return what an error says first; Paddle puts what a backward pass in Python raised into a frame."""
    _, frame, framed = str(error).rpartition("Error message in backward of")
    text = framed.partition("\n")[2] if frame else f"{type(error).__name__}: {error}"
    return text.strip().partition("\n")[0]


class Enough(BaseException):
    """So much of a pass was recorded as is wanted."""


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
        # the result and what it may take the place of, if there is one and this call is the last that reads it
        replaced: Sequence[int] = getattr(call, "replaced", ())
        found = [use for index in replaced for use in self.uses if use[2] == index]
        self.replaced = found if len(found) == 2 else []

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
        kept: the `uses` of a step whose memory has to be as it was then.
    """

    replaced = ()

    def __init__(self, name, function, args, kwargs, results, kept, find):
        self.name, self._function = name, function
        self.uses, self._places = list(kept), {}
        self._args, self._kwargs = replace_tensors(args, kwargs, functools.partial(self._place, find))
        self._made: list[tuple[int, Any, list[int], Any]] = []
        for index, tensor in results:
            block = layout = None
            if pointer_of(tensor):
                block, layout = find(tensor.data_ptr(), name)[0], (tensor.strides, tensor.dtype)
                self.uses.append((block, 0, None))
            self._made.append((index, block, tensor.shape, layout))

    @property
    def bytes(self):
        """Those of its results, which are copied."""
        return sum(block.bytes for _, block, _, _ in self._made if block is not None)

    def _place(self, find, tensor):
        """Return what stands for a tensor, whose memory is free before the pass is played, among the arguments."""
        if not pointer_of(tensor):
            return tensor
        block, offset = find(tensor.data_ptr(), self.name)
        self.uses.append((block, offset, None))
        if block.given:
            return tensor
        stand_in = paddle_names.empty([0], FLOAT32, CPU)
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


def tensors_of(result):
    """Return the tensors that an operator returned."""
    return scan(result if isinstance(result, (list, tuple)) else [result], {})[0]


def pointer_of(tensor):
    """Return where a tensor begins, 0 for one without memory: an empty one, or the state of an LSTM's dropout."""
    try:
        return 0 if 0 in tensor.shape else tensor.data_ptr()
    except RuntimeError:
        return 0
