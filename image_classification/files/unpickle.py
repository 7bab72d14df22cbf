"""Pickles of tensors, arrays, numbers, text, lists, tuples and dicts, and nothing else.

A pickle is a program for a small stack machine. This is such a machine for the opcodes that the picklers of protocols 2
to 5 write for plain data. Names lead to :mod:`.constructors` or nowhere, nothing sets attributes, and none of the code
of torch, Paddle or any other package runs. Work and memory are bounded by the size of the file: each opcode is a step,
and what a step makes beyond the file's own bytes costs further ones. A key is a text or a number, because hashing a
nested tuple takes time without bound.
"""

import os
import pickle
import struct
import sys
from typing import NamedTuple

import numpy as np

from ..runtime import UserError
from .constructors import (
    BYTES_A_STEP,
    CONSTRUCTORS,
    Constructor,
    DType,
    EmptyArray,
    LeftOut,
    Storage,
    StorageType,
    Unknown,
    brief,
    is_size,
)
from .opcodes import OPCODES
from .pickle_tree import check_tree

STEPS = 500_000  # half a second, 50 MB
LONGEST_NAME = 200  # characters of a module or of a class
MOST_ARGUMENTS = 16
LARGE = 1 << 16  # bytes
LARGEST_KEY = 1 << 60  # Python's hash of a larger number is that of a smaller one, too


class Pickle(NamedTuple):
    """What a pickle holds: dicts, lists, tuples, plain values, arrays, TorchTensors.

    Attributes:
        storages: {key: Storage} of all torch tensors.
        left_out: names of the harmless classes whose objects stand in `tree` as LeftOut, sorted.
    """

    tree: object
    storages: dict
    left_out: list


class _Cut(Exception):
    """The file ends inside a pickle, or is none."""


def load_pickle(file, path, encoding="latin1", size=None):
    """Return the :class:`Pickle` that a binary file has at its position; the file is behind it then.

    Args:
        encoding: what text of Python 2 becomes, "latin1" text or "bytes".
        size: bytes that the budget goes by, where the pickle is a part of a larger file.

    Raises:
        UserError: it is cut, damaged, or asks for anything else; nothing of it has been run.
    """
    try:
        return _Unpickler(file, encoding, size).load()
    except _Cut as error:
        raise UserError(f"{path}: is damaged or cut: {error}") from None
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: refused: it holds {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, struct.error, OSError) as error:
        raise UserError(f"{path}: is damaged or cut: {type(error).__name__} {str(error)[:80]}".strip()) from None


class _Unpickler:
    def __init__(self, file, encoding, size):
        self.file = file
        begin = file.tell()
        self.end = file.seek(0, os.SEEK_END)
        file.seek(begin)
        self.encoding = encoding
        self.budget = self.steps = STEPS + max(self.end - begin, size or 0) // BYTES_A_STEP
        self.stack = []
        self.outer = []  # the stacks below the open marks
        self.memo = {}
        self.storages = {}

    def load(self):
        """Run the program to its end and return the :class:`Pickle`."""
        read, opcodes = self.file.read, OPCODES
        while True:
            opcode = read(1)
            if opcode == pickle.STOP:
                break
            self.steps -= 1
            if self.steps < 0:
                raise pickle.UnpicklingError(self._too_much())
            try:
                run = opcodes[opcode]
            except KeyError:
                if not opcode:
                    raise _Cut("the end is missing") from None
                raise pickle.UnpicklingError(f"the opcode {opcode!r}, which no plain data needs") from None
            run(self)
        if self.outer or len(self.stack) != 1:
            raise _Cut("its parts do not make one value")
        tree = self.stack[0]
        return Pickle(tree, self.storages, sorted(check_tree(tree, self.budget)))

    def pay(self, steps):
        """Take the price of what a constructor makes from the budget."""
        self.steps -= steps
        if self.steps < 0:
            raise pickle.UnpicklingError(self._too_much())

    def _too_much(self):
        return f"more than {self.budget} parts, too many for a file of its size"

    # ---- bytes

    def require(self, size):
        """Raise unless that many bytes follow."""
        left = self.end - self.file.tell()
        if size > left:
            raise _Cut(f"{size} bytes are claimed, {left} follow")

    def take(self, size):
        """Return the next bytes."""
        if size > LARGE:
            self.require(size)  # before the memory for it is reserved
        data = self.file.read(size)
        if len(data) != size:
            raise _Cut(f"{size} bytes are claimed, {len(data)} follow")
        return data

    def number(self, form):
        """Return the next bytes as a number."""
        return form.unpack(self.take(form.size))[0]

    def line(self):
        """Return the text up to the next line feed."""
        text = self.file.readline(LONGEST_NAME)
        if text[-1:] != b"\n":
            raise _Cut("a name does not end")
        return text[:-1].decode("utf-8")

    def text(self, size):
        """Push the text in the next bytes."""
        data = self.take(size)
        if not data.isascii() and np.frombuffer(data, np.uint8).max() > 0xC3:
            self.pay(3 * size // BYTES_A_STEP)  # one character beyond U+00FF, and each takes up to four bytes of memory
        self.stack.append(data.decode("utf-8", "surrogatepass"))

    def python2_text(self, size):
        """Push the next bytes as the encoding says."""
        data = self.take(size)
        self.stack.append(data if self.encoding == "bytes" else data.decode("latin1"))

    # ---- stack and memo

    def mark(self):
        """Begin a new stack above this one."""
        self.outer.append(self.stack)
        self.stack = []

    def pop_mark(self):
        """Return what stands above the last mark, and go on below it."""
        items, self.stack = self.stack, self.outer.pop()
        return items

    def pop_tuple(self, count):
        """Put a tuple in the place of that many values."""
        if len(self.stack) < count:
            raise IndexError("a tuple of what is not there")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def remember(self, index):
        """Keep the top of the stack in the memo."""
        value = self.memo[index] = self.stack[-1]
        if type(value) is EmptyArray:
            value.places.append(index)

    def put(self, target, key, value):
        """Set an entry of a dict."""
        kind = type(key)
        if kind is not str and kind is not bytes and not (kind is int and -LARGEST_KEY < key < LARGEST_KEY):
            raise pickle.UnpicklingError("a key that is neither text nor a number")
        if key in target:
            raise pickle.UnpicklingError(f"the name {brief(key)} twice")
        target[key] = value

    def set_items(self, pairs):
        """Set entries of the dict on the stack from [key, value, key, value, ...]."""
        target = self.stack[-1]
        if type(target) is LeftOut:
            return
        if type(target) is not dict or len(pairs) % 2:
            raise pickle.UnpicklingError("entries of what is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.put(target, key, value)

    def append_items(self, items):
        """Extend the list on the stack."""
        target = self.stack[-1]
        if type(target) is LeftOut:
            return
        if type(target) is not list:
            raise pickle.UnpicklingError("items of what is no list")
        target.extend(items)

    # ---- names and what they stand for

    def name(self, module, name):
        """Push what a name stands for."""
        if type(module) is not str or type(name) is not str or len(module) + len(name) > LONGEST_NAME:
            raise pickle.UnpicklingError("a name that is none")
        self.stack.append(CONSTRUCTORS.get((module, name)) or Unknown(f"{module}.{name}"))

    def call(self, build, arguments):
        """Return what a constructor makes of its arguments."""
        if type(build) is LeftOut:
            return build
        if type(build) is Unknown:
            raise pickle.UnpicklingError(f"{build.name}, which is no part of a tensor")
        if type(build) is not Constructor or type(arguments) is not tuple or len(arguments) > MOST_ARGUMENTS:
            raise pickle.UnpicklingError("a call of something that is no tensor")
        return build.build(self, *arguments)

    def reduce(self):
        """Call: a constructor and its arguments are on the stack."""
        arguments = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def new_object(self):
        """Make an object without a constructor: of a harmless class alone."""
        self.stack.pop()
        kind = self.stack[-1]
        if type(kind) is not LeftOut:
            raise pickle.UnpicklingError(_objects_of(kind))

    def build(self):
        """Give an array, a type or a dict its state."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is DType:
            target.set_state(self, state)
        elif type(target) is EmptyArray:
            array = self.stack[-1] = target.set_state(self, state)
            for index in target.places:
                self.memo[index] = array
        elif type(target) not in (dict, LeftOut):  # an OrderedDict's attributes are of no use here
            raise pickle.UnpicklingError("attributes of something that is no tensor")

    def persistent(self):
        """Push the torch storage that a reference names."""
        reference = self.stack.pop()
        if type(reference) is not tuple or not 5 <= len(reference) <= MOST_ARGUMENTS or reference[0] != "storage":
            is_module = type(reference) is tuple and reference[:1] == ("module",)  # as PyTorch 1.5 wrote models
            raise pickle.UnpicklingError(_objects_of(reference[1]) if is_module else "an unknown reference")
        _, kind, key, _device, size, *view = reference
        if type(kind) is not StorageType or any(part is not None for part in view):
            raise pickle.UnpicklingError("a reference to something that is no storage")
        if type(key) is not str or not is_size(size):
            raise pickle.UnpicklingError("a storage of impossible size")
        storage = self.storages.setdefault(key, Storage(kind.dtype, key, size))
        if storage != (kind.dtype, key, size):
            raise pickle.UnpicklingError(f"two storages of the name {brief(key)}")
        self.stack.append(storage)


def _objects_of(kind):
    """Return what a pickle holds that makes objects of a class, and how its owner turns it into weights."""
    name = kind.name if type(kind) is Unknown else "an unknown class"
    if name.split(".")[0] in sys.stdlib_module_names:
        return f"an object of {name}, which is no part of a tensor"
    return (
        f"a whole model ({name}), which is a program; whoever trusts it converts it where that program is installed: "
        'model = torch.load("model.pth", weights_only=False); torch.save(model.state_dict(), "weights.pth")'
    )
