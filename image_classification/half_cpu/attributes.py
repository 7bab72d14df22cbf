"""What the attributes of a model's layers are, to be compared with what they are later."""

import array
import collections
import ctypes
import pickle
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle

from . import paddle_names
from .state import statistics

_DEEP, _LONG = 4, 256  # lists in lists, and entries of one, beyond which it is looked at as a whole
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_LISTS = list, tuple, set, frozenset, collections.deque
_WHOLES = paddle.nn.Layer, paddle.Tensor, types.ModuleType
_IN_PYTHON = 1 << 9  # of a class's flags: its attributes can change
_BYTES: tuple = bytearray, array.array, ctypes.Structure.__base__
_SLOT = types.MemberDescriptorType
_STATES = random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, np.ndarray, *_BYTES
# what a call of a function depends on, but for code and global variables
_NAMES: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__dict__", "__closure__", "__defaults__", "__kwdefaults__"),
    types.CellType: ("cell_contents",),
}


class Attributes:
    """Those of layers: numbers, texts and modes as they are, generators of random numbers and small arrays by their
    states, lists, tuples, sets and dictionaries by what they hold, functions by what they are bound to, objects of the
    user's own classes, such as a configuration, by their attributes, the user's own classes likewise, also those of
    layers and objects, iterators as others each time, all else by which object it is.

    Attributes:
        marks: what is compared, as long as this lives and with it the objects, whose places are theirs alone.
    """

    def __init__(self, layers):
        self._held: list[Any] = []
        self._classes = set[type]()
        for layer in layers:
            self._hold(paddle_names.attributes(layer), _DEEP)
        for kind in dict.fromkeys(map(type, layers)):
            self._hold_class(kind)
        held = [value if type(value) in _PLAIN else id(value) for value in self._held]
        self.marks = tuple(held), tuple(map(type, self._held))  # 1, 1.0 and True are equal

    def _hold(self, values, depth):
        held = self._held
        for value in values:
            kind = _KINDS[type(value)]
            if kind is None:
                held.append(value)
            elif kind is pickle:
                held.append(_state(value))
            elif kind is iter:
                held.append(object())  # nobody knows where it stands
            elif kind is type:
                held.append(value)
                self._hold_class(value)
            elif type(kind) is tuple:
                held.append(value)
                self._hold_class(type(value))
                if depth > 0:  # a logger has an attribute that leads to all others
                    self._hold([_part(value, name) for name in kind], depth - 1)
            elif not value:
                held.append(0)
            elif len(value) > _LONG or depth <= 0:
                held += value, len(value)
            else:
                held.append(len(value))
                self._hold(value, depth - 1)
                if kind is dict:
                    self._hold(value.values(), depth - 1)

    def _hold_class(self, kind):
        """Hold what a class has, and those that it derives from, the first time."""
        if kind in self._classes:
            return
        self._classes.add(kind)
        if kind.__flags__ & _IN_PYTHON and not _is_librarys(kind):
            self._hold([*vars(kind).values()], 1)  # a list, as other threads may go on
        for base in kind.__bases__:
            self._hold_class(base)

    def unknown(self, layers):
        """Return the tensors among them, and what may be statistics of layers, that are none of these layers'."""
        own = set(map(id, layers))
        others = [one for one in self._held if isinstance(one, paddle.nn.Layer) and id(one) not in own]
        parameters, buffers = paddle_names.parameters_and_buffers([
            part for one in others for part in one.sublayers(include_self=True)
        ])  # fmt: skip
        tensors = [one for one in self._held if isinstance(one, paddle.Tensor)]
        known = {id(one) for tables in paddle_names.parameters_and_buffers(layers) for one in tables}
        return [one for one in (*tensors, *buffers, *statistics(parameters)) if id(one) not in known]


def _part(value, name):
    """Return an attribute, None where there is none: a slot or a cell may be empty."""
    try:
        return getattr(value, name)
    except (AttributeError, ValueError):
        return None


def _state(value):
    """Return the state of a generator or an array, or the object where that is large or cannot be told."""
    if getattr(value, "size", 0) > _LONG or isinstance(value, _BYTES) and len(memoryview(value).cast("B")) > 8 * _LONG:
        return value
    try:
        return bytes(value) if isinstance(value, _BYTES) else pickle.dumps(value)
    except Exception:  # of the system's entropy, or of whatever objects lie in an array
        return value


class _Kinds(dict[type, Any]):
    """How an object is looked at, by its type: `pickle` by its state, `dict`, `list` or `type`, a tuple by these
    attributes, `iter` as another one each time, None as a whole."""

    def __missing__(self, type_):
        groups = (_STATES, pickle), (dict, dict), (_LISTS, list), (type, type), (_WHOLES, None), (Iterator, iter)
        found = next((way for kinds, way in groups if issubclass(type_, kinds)), _names(type_))
        self[type_] = _names(type_) if found is iter and type_.__dictoffset__ else found
        return self[type_]


def _names(type_):
    """Return the names under which objects of a type keep what they are made of, or None."""
    if _is_librarys(type_):
        return None
    slots = [name for part in type_.__mro__ for name, one in vars(part).items() if isinstance(one, _SLOT)]
    return _NAMES.get(type_, ("__dict__", *slots) if type_.__dictoffset__ else tuple(slots)) or None


def _is_librarys(type_):
    """Such as what initialises weights, of which there are many and none is looked at later, or a part that is replayed
    by itself, which counts its calls."""
    return type_.__module__.startswith(("paddle.", __package__))


_KINDS = _Kinds()
