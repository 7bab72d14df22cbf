"""What the attributes of a model's layers are, to be compared with what they are later."""

import collections
import pickle
import random
import types
from typing import Any

import numpy as np
import paddle

from . import paddle_names

_DEEP, _LONG = 4, 256  # lists in lists, and entries of one, beyond which it is looked at as a whole
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_LISTS = list, tuple, set, frozenset, collections.deque
_WHOLES = paddle.nn.Layer, paddle.Tensor, type, types.FunctionType, types.ModuleType
_STATES = random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, np.ndarray


class Attributes:
    """Those of layers: numbers, texts and modes as they are, generators of random numbers and small arrays by their
    states, lists, tuples, sets and dictionaries by what they hold, objects of the user's own classes, such as a
    configuration, by their attributes, all else by which object it is.

    Attributes:
        marks: what is compared, as long as this lives and with it the objects, whose places are theirs alone.
    """

    def __init__(self, layers):
        self._held: list[Any] = []
        for layer in layers:
            self._hold(paddle_names.attributes(layer), _DEEP)
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
            elif kind is vars:
                held.append(value)
                if depth > 0:
                    self._hold(vars(value).values(), depth - 2)  # a logger has an attribute that leads to all others
            elif not value:
                held.append(0)
            elif len(value) > _LONG or depth <= 0:
                held += value, len(value)
            else:
                held.append(len(value))
                self._hold(value, depth - 1)
                if kind is dict:
                    self._hold(value.values(), depth - 1)


def _state(value):
    """Return the state of a generator or an array, or the object where that is large or cannot be told."""
    if getattr(value, "size", 0) > _LONG:
        return value
    try:
        return pickle.dumps(value)
    except Exception:  # of the system's entropy, or of whatever objects lie in an array
        return value


class _Kinds(dict[type, Any]):
    """How an object is looked at, by its type: `pickle` by its state, `dict` or `list`, `vars` by its attributes, None
    as a whole."""

    def __missing__(self, type_):
        groups = (_STATES, pickle), (dict, dict), (_LISTS, list), (_WHOLES, None)
        is_own = type_.__dictoffset__ and not _is_librarys(type_)
        self[type_] = next((way for kinds, way in groups if issubclass(type_, kinds)), vars if is_own else None)
        return self[type_]


def _is_librarys(type_):
    """Such as what initialises weights, of which there are many and none is looked at later, or a part that is replayed
    by itself, which counts its calls."""
    return type_.__module__.startswith(("paddle.", __package__))


_KINDS = _Kinds()
