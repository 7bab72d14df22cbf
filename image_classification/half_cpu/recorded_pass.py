"""A recorded pass, which is played again: its calls, its memory, and the tensors that go in and come out."""

import contextlib
import ctypes
import math

import paddle

from . import paddle_names
from .call_list import CallList
from .onednn_memory import are_rows, channels_last, is_settled, new_channels_last
from .onednn_primitives import new_tensor
from .scope import undispatched


class Slot:
    """An input or a result.

    Attributes:
        block: its memory while the pass is recorded; `is_whole`: whether that is all of it, and dense.
        are_rows: whether it is images that lie as [B, H, W, C].
        users: [(step, argument, offset)] of all that uses it, where it may be anywhere; or None, and
        own: the tensor that is used.
    """

    def __init__(self, tensor, block, offset):
        self.shape, self.strides, self.dtype = tensor.shape, tensor.strides, tensor.dtype
        self.block, self._offset = block, offset
        self.are_rows = are_rows(tensor)
        self.is_whole = not offset and is_settled(tensor) and block.bytes == _bytes(tensor)
        self.users, self.own = None, tensor if block.given else None

    def move(self, users):
        """Let it be anywhere, if all its users can look there."""
        if all(argument is not None for _, argument, _ in users):
            self.users, self.own, self.block.apart = users, None, True

    def is_used_from(self, number):
        """Return whether steps from a number on use it where it is."""
        return any(step >= number for step, _, _ in self.users or ())

    def laid(self, tensor):
        """Return a tensor, or a copy of it, in the order of this one."""
        return channels_last(tensor) if self.are_rows else tensor.contiguous()

    def new(self):
        """Return a tensor with arbitrary content of this one's shape, format and order."""
        return (new_channels_last if self.are_rows else new_tensor)(self.dtype, self.shape)

    def settle(self):
        """Know the tensor, since the memory has its place."""
        if self.users is None and self.own is None:
            self.own = self.block.tensor(self._offset, self.shape, self.strides, self.dtype)


class Pass:
    """A recorded pass, which belongs to a thread. `bytes` are those of its intermediate results that are in use at a
    time, `steps` what its calls are and which memory they use."""

    def __init__(self, steps, calls, inputs, results, arenas, constants):
        self.steps, self.calls, self.inputs, self.results = steps, CallList(calls), inputs, results
        self.arenas, self.bytes = arenas, sum(arena.shape[0] for arena in arenas)
        self._constants, self._is_poisoned = constants, False

    def __len__(self):
        return len(self.calls)

    def __call__(self, inputs):
        """Return the results of all steps for inputs of the recorded shapes."""
        for slot, tensor in zip(self.inputs, inputs, strict=True):
            self.read(slot, tensor)
        results = [self.write(slot) for slot in self.results]
        self.play(0, len(self))
        return [self.written(slot, tensor) for slot, tensor in zip(self.results, results, strict=True)]

    def read(self, slot, tensor):
        """Have the pass read a tensor of an input's shape and format."""
        if slot.users is None:
            paddle_names.assign_out_(tensor, slot.own)
        else:
            self.look(slot, tensor.data_ptr())

    def look(self, slot, pointer):
        """Have the pass read an input, or write a result, where a pointer points to."""
        for number, argument, offset in slot.users:
            self.calls.put(number, argument, pointer + offset)

    def write(self, slot):
        """Return a tensor to which the pass will write a result, or None where `written` gives one."""
        if slot.users is None:
            return None
        tensor = slot.new()
        if self._is_poisoned:
            _poison(tensor)
        self.look(slot, tensor.data_ptr())
        return tensor

    def written(self, slot, tensor):
        """Return a result: the tensor of `write`, or a copy."""
        return slot.own.detach().clone() if tensor is None else tensor

    def play(self, first, last):
        """Make the calls of some steps."""
        with undispatched(), paddle.no_grad():
            self.calls.make(first, last)

    @contextlib.contextmanager
    def poisoned(self):
        """Have the passes inside begin with NaN wherever one has to write before it reads."""
        for arena in self.arenas:
            _poison(arena)
        self._is_poisoned = True
        try:
            yield
        finally:
            self._is_poisoned = False


def _poison(tensor):
    ctypes.memset(tensor.data_ptr(), 255, _bytes(tensor))


def _bytes(tensor):
    return math.prod(tensor.shape) * tensor.element_size()
