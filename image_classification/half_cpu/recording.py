"""The calls of kernels and operators that a forward pass is made of, and the memory that they use."""

import contextlib
import ctypes
import functools
import sys
import threading
from bisect import bisect_right
from typing import Any

import paddle

from . import paddle_names
from .arguments import replace_tensors, scan
from .compiled_library import addresses
from .onednn_primitives import new_tensor
from .scope import active

LARGEST = 1 << 30  # bytes: beyond, the layers cost little beside their kernels
_ALIGNMENT = 64  # bytes, a line of the cache
_UINT8 = paddle.uint8


class Refused(Exception):
    """A pass that cannot be played again; the message says why."""


class Block:
    """Memory of a pass: where it begins and ends, the tensors that hold it, whether its content comes from outside of
    the pass, whether it has to stay where it is, the first and the last step that uses it, and where it goes."""

    __slots__ = ("start", "end", "tensors", "given", "stays", "first", "last", "place")

    def __init__(self, tensor, given):
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)) + 1
        self.start = tensor.data_ptr()
        self.end = self.start + max(reach, 1) * tensor.element_size()
        self.tensors = [tensor]
        self.given = self.stays = given
        self.first = self.last = self.place = None

    def merge(self, other):
        """Add a block that begins inside of this one."""
        self.end = max(self.end, other.end)
        self.tensors += other.tensors
        self.given |= other.given
        self.stays = True


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

    moves = False

    def __init__(self, original, args, kwargs, made):
        self.name = original.__name__
        self._call, self._made = functools.partial(original, *args, **kwargs), made
        tensors = [*scan(args, kwargs)[0], *(place for _, place in made)]
        self.addresses = list(filter(None, map(_pointer, tensors)))

    def moved(self, place_of):
        return self

    def __call__(self):
        results = _tensors(self._call())
        for index, place in self._made:
            if results[index].shape != place.shape:
                raise Refused(f"the shape that {self.name} returns depends on its data")
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
        if sys.getprofile() is not None:
            raise Refused("a profiler watches this thread")  # and there is one place for one
        active.recorder = self
        sys.setprofile(self._watch)
        try:
            yield
        finally:
            sys.setprofile(None)
            active.recorder = None

    def _watch(self, frame, event, function):
        if event == "c_call" and paddle_names.reads_tensor(function):
            self.reason = "Python reads a tensor, on which its path may depend"

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
        self._blocks.append(Block(tensor, False))
        self._bytes += self._blocks[-1].end - self._blocks[-1].start

    def constant(self, tensor):
        """Note what a kernel made of no tensor."""
        self._blocks.append(Block(tensor, True))

    def called(self, call, arguments, pointers):
        """Note a call of a kernel."""
        self._steps.append(Kernel(call, arguments, pointers))

    def operator(self, original, args, kwargs, tensors, results, writes):
        """Note a call of an operator, unless its results are views of the `tensors` that it was given."""
        known = [Block(tensor, False) for tensor in tensors if _pointer(tensor)]

        def is_new(start):
            return start and not any(block.start <= start < block.end for block in known)

        made = [] if writes else [(index, each) for index, each in enumerate(results) if is_new(_pointer(each))]
        if not all(tensor.is_contiguous() for _, tensor in made):
            self.reason = f"a result of {original.__name__} is not dense"
        if not made and not writes and (len(tensors) > 1 or _slices_by_tensors(args)):
            self.reason = f"what {original.__name__} shows of a tensor depends on its data"
        if made or writes:
            for _, tensor in made:
                self.allocated(tensor)
            self._steps.append(Operator(original, args, kwargs, made))

    def finish(self, result: Any) -> "Pass":
        """Return the recorded pass, of which `result` is the result: it is closed if each pointer lies in a constant,
        an input or memory that was noted, and if Python read no tensor.

        Raises:
            Refused: it is not.
        """
        results = paddle_names.flatten(result)
        if not all(isinstance(tensor, paddle.Tensor) for tensor in results):
            raise Refused("a result is no tensor")
        if self.reason:
            raise Refused(self.reason)
        blocks = _merged(self._blocks)
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
                block.first = number if block.first is None else block.first
                block.last = number
                block.stays |= not step.moves
        for tensor in results:
            block_of(tensor.data_ptr(), "the result").stays = True
        arena = _arena([block for block in blocks if not block.stays and block.first is not None])
        calls = [step.moved(place_of) for step in self._steps]
        return Pass(calls, self._inputs, result, [block for block in blocks if block.stays], arena)


def _pointer(tensor):
    """Return where a tensor begins, 0 or None for one without memory, such as the state of an LSTM's dropout."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return None


def _tensors(result):
    return scan(result if isinstance(result, (list, tuple)) else [result], {})[0]


def _slices_by_tensors(args):
    values = [part for value in args for part in (value if isinstance(value, (list, tuple)) else [value])]
    bounds = [bound for part in values if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    return any(isinstance(bound, paddle.Tensor) for bound in bounds)


def _merged(blocks):
    """Return the blocks by their beginnings, those that overlap as one."""
    merged: list[Block] = []
    for block in sorted(blocks, key=lambda block: block.start):
        if merged and block.start < merged[-1].end:
            merged[-1].merge(block)
        else:
            merged.append(block)
    return merged


def _arena(blocks):
    """Return a tensor in which each block gets a place, the same one only those that no two steps use at a time."""
    placed: list[tuple[int, int, Block]] = []
    total = 0
    for block in sorted(blocks, key=lambda block: block.start - block.end):  # the largest first
        size, offset = -(-(block.end - block.start) // _ALIGNMENT) * _ALIGNMENT, 0
        for begin, end, other in sorted(placed, key=lambda one: one[0]):
            if other.last < block.first or block.last < other.first:
                continue
            if offset + size <= begin:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, block))
        total = max(total, offset + size)
    arena = new_tensor(_UINT8, [total + _ALIGNMENT])
    base = -(-arena.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    for offset, _, block in placed:
        block.place = base + offset
    return arena


class Pass:
    """A recorded forward pass; call it with inputs of the recorded shapes."""

    def __init__(self, calls, inputs, result, blocks, arena):
        self._calls, self._inputs, self._result = calls, inputs, result
        self._blocks, self._arena = blocks, arena
        self._lock = threading.Lock()

    def __call__(self, inputs):
        scope, active.scope = active.scope, None
        try:
            with self._lock:
                for own, given in zip(self._inputs, inputs, strict=True):
                    paddle_names.assign_out_(given, own)
                for call in self._calls:
                    call()
                return paddle_names.map_structure(paddle.Tensor.clone, self._result)
        finally:
            active.scope = scope

    def poison(self):
        """Write NaN wherever a pass has to write before it reads."""
        for block in self._blocks:
            if not block.given:
                ctypes.memset(block.start, 255, block.end - block.start)
        ctypes.memset(self._arena.data_ptr(), 255, self._arena.shape[0])
