"""The calls of kernels and operators that a pass is made of, and the memory that they use."""

import collections
import contextlib
import pickle
import random
from collections import OrderedDict

import numpy as np
import paddle

from .arena import Block, Memory, arenas
from .noted_operators import Noted
from .past_operators import Watcher
from .recorded_calls import Enough, Kernel, Operator, Refused, pointer_of
from .recorded_pass import Pass, Slot
from .scope import active

# Results of operators of Paddle are copied once a pass is played: of more than so many bytes, no larger share of all
COPIED, SHARE = 1 << 20, 0.5


class Recorder(Watcher):
    """Notes the calls of a pass and the memory that they use.

    Args:
        constants: tensors whose content is not the pass's own: weights, and what was made of them.
        inputs: see `input`.
        shared: ids of weights whose readers' gradients are summed by kernels, where it is seen.
        most: the number of calls with whose next one the pass is left by :class:`Enough`.

    Attributes:
        steps: the calls.
    """

    def __init__(self, constants, inputs, shared=frozenset(), most=None):
        self._most = most
        self._shared, self._readers = shared, collections.Counter[int]()
        self.steps: list[Kernel | Operator] = []
        self._inputs, self._made, self._memory = [], [], Memory()
        for tensor in filter(pointer_of, constants):
            self._memory.add(Block(tensor, True))
        for tensor in inputs:
            self.input(tensor)

    def input(self, tensor):
        """Note a dense tensor, or images that are (see `are_rows`), of whose content each pass gets another."""
        self._inputs.append(tensor)
        if pointer_of(tensor):
            self._memory.add(Block(tensor, True))

    def reads(self, tensor):
        """Note an operator that reads a tensor; return whether it is to get a view of it."""
        if tensor.is_leaf and not tensor.stop_gradient:
            self._readers[id(tensor)] += 1
        return id(tensor) in self._shared

    def shared(self):
        """Return the ids of the weights that several operators read."""
        return frozenset(tensor for tensor, readers in self._readers.items() if readers > 1)

    @contextlib.contextmanager
    def recording(self):
        """Note what this thread computes until this ends."""
        drawn = _draws()
        with self.watching():
            try:
                active.recorder = self
                yield
            finally:
                active.recorder = None
        if drawn != _draws():
            self.refuse("Python draws random numbers")

    def noted(self, original, writes=False):
        """Return Paddle's operator, noting its calls; `writes`: whether it writes to what it is given."""
        return original if isinstance(original, Noted) else Noted(self, original, writes)

    def allocated(self, tensor):
        """Note memory that a kernel or an operator got."""
        self._memory.add(Block(tensor))

    def constant(self, tensor):
        """Note what a kernel made of no tensor."""
        self._made.append(tensor)
        self._memory.add(Block(tensor, True))

    def called(self, call, arguments, pointers):
        """Note a call of a kernel."""
        self._add(Kernel, call, arguments, pointers)

    def operator(self, name, function, args, kwargs, results, kept=()):
        """Note a call of an operator, see :class:`Operator`; return its `uses`."""
        for _, tensor in results:
            if pointer_of(tensor):
                self.allocated(tensor)
        return self._add(Operator, name, function, args, kwargs, results, kept)

    def _add(self, kind, *arguments):
        if len(self.steps) == self._most:
            raise Enough
        try:
            step = kind(*arguments, self._find)
        except Refused as error:
            self.refuse(str(error))
            return ()
        for block, _, _ in step.uses:
            block.use(len(self.steps))
        self.steps.append(step)
        return step.uses

    def _find(self, pointer, name):
        """Return (block, offset) of an address."""
        block = self._memory.find(pointer)
        if block is None:
            raise Refused(f"{name} uses memory of unknown origin")
        return block, pointer - block.start

    def returns(self, results: list[paddle.Tensor]) -> None:
        """Note what the pass returns, which need not live until it is played.

        Raises:
            Refused: it cannot be played: not each pointer lies in a constant, an input or memory that was noted, or
                Python read a tensor.
        """
        if self.reason:
            raise Refused(self.reason)
        users: dict[Block, list] = {}
        for number, step in enumerate(self.steps):
            for block, offset, argument in step.uses:
                users.setdefault(block, []).append((number, argument, offset))
        tensors = [*self._inputs, *results]
        slots = [Slot(tensor, *self._find(tensor.data_ptr(), "the result")) for tensor in tensors]
        seen = collections.Counter(slot.block for slot in slots)
        for number, slot in enumerate(slots):
            found, is_input = users.get(slot.block, []), number < len(self._inputs)
            if slot.is_whole and seen[slot.block] == 1 and slot.block.given == is_input:
                slot.move(found)
            slot.block.use(len(self.steps))  # nothing is written over it
        self._slots = slots[: len(self._inputs)], slots[len(self._inputs) :]
        self._inputs = []
        self._blocks = users.keys()

    def copies_little(self) -> None:
        """See that little of what the pass computes is copied.

        Raises:
            Refused: it would take longer than with layers.
        """
        copied = sum(step.bytes for step in self.steps if isinstance(step, Operator))
        if copied > max(COPIED, SHARE * sum(block.bytes for block in self._blocks if not block.given)):
            raise Refused("operators of Paddle's compute most of it, whose results would be copied")

    def read_from(self, number, tensors):
        """Return those tensors whose memory steps from a number on use."""
        used = {block for step in self.steps[number:] for block, _, _ in step.uses}
        return [tensor for tensor in tensors if pointer_of(tensor) and self._memory.find(tensor.data_ptr()) in used]

    def finish(self) -> Pass:
        """Return the recorded pass, which has no memory but its own."""
        for number, step in enumerate(self.steps):
            if step.replaced:
                (made, start, _), (read, other_start, _) = step.replaced
                alike = start == other_start == 0 and made.bytes == read.bytes
                once = [block for block, _, _ in step.uses].count(read) == 1
                if alike and once and number == made.first == read.last and not made.apart and not read.apart:
                    made.take_place(read)
        holders = arenas([block for block in self._blocks if not block.apart])
        calls = [step.moved() for step in self.steps]
        for slot in (*self._slots[0], *self._slots[1]):
            slot.settle()
        return Pass(self.steps, calls, *self._slots, holders, self._made)


def _draws():
    """Return where the random generators of Python and NumPy stand."""
    return random.getstate(), pickle.dumps(np.random.get_state())


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


def copies(inputs):
    """Return copies, the same one of what is given twice: a model may ask whether its queries are its keys."""
    copied = {id(tensor): tensor.clone() for tensor in inputs}
    return [copied[id(tensor)] for tensor in inputs]


def flat(result):
    """Return the tensors that a model returned, each once."""
    tensors: dict[int, paddle.Tensor] = {}
    mapped(lambda tensor: tensors.setdefault(id(tensor), tensor), result)
    return list(tensors.values())


def outline(result):
    """Return what a model returned, with another empty tensor in place of each tensor, to be filled."""
    places = {id(tensor): paddle.empty([0]) for tensor in flat(result)}
    return mapped(lambda tensor: places[id(tensor)], result)


def filled(empty, tensors):
    """Return an `outline` with tensors, in the order of `flat`, in their places."""
    places = {id(place): tensor for place, tensor in zip(flat(empty), tensors, strict=True)}
    return mapped(lambda place: places[id(place)], empty)
