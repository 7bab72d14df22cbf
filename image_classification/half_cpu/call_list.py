"""The calls of a recorded pass, one after the other: C++ makes those of kernels where it is compiled, else Python does.

Before each kernel Python takes a few microseconds, and more once its code has left the cache: as long as small ones.
"""

import contextlib
import ctypes
import functools
import struct
from typing import Any

from .compiled_library import load
from .onednn_primitives import Primitive

_AT_ONCE = 32  # calls without a look at signals
_LISTS = {"integers": 20, "floats": 8}  # as long as in cpp/play.cpp


class _Call(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), *((name, ctypes.c_long * size) for name, size in _LISTS.items())]


class CallList:
    """Calls, as `functools.partial` of compiled functions, primitives or what Python calls."""

    def __init__(self, calls):
        self._calls = calls
        self._library = load()
        self._rows, self._lock = (_Call * len(calls))(), contextlib.nullcontext()
        # for each call: the array of its pointers and {argument: place in the array}, None for one that Python makes
        self._places = [self._write(row, call) for row, call in zip(self._rows, calls, strict=True)]
        self._pieces = functools.cache(self._split)

    def __len__(self):
        return len(self._calls)

    def __iter__(self):
        return iter(self._calls)

    def is_kernel(self, number):
        """Return whether a call is one of a kernel."""
        return self._places[number] is not None

    def put(self, number, argument, pointer):
        """Have a call of a kernel take a pointer as its argument."""
        if self._places[number] is None:
            call = self._calls[number]
            arguments = *call.args[:argument], pointer, *call.args[argument + 1 :]
            self._calls[number] = functools.partial(call.func, *arguments)
        else:
            array, places = self._places[number]
            array[places[argument]] = pointer

    def make(self, first, last):
        """Make the calls of some steps."""
        status = ctypes.c_int()
        for start, end in self._pieces(first, last):
            if self._places[start] is None:
                self._calls[start]()
                continue
            with self._lock:
                stopped = self._library.play(self._rows, start, end, ctypes.byref(status))
            if stopped < end:
                call = self._calls[stopped]
                call.func.errcheck(status.value, call.func, call.args)

    def _write(self, row, call):
        """Write a call of C++ to its row; return what `_places` has of it."""
        function, arguments = call.func, call.args
        pointers: Any = None
        if self._library is None:
            return None
        if isinstance(function, Primitive):
            self._lock = function.lock
            pointers = (ctypes.c_void_p * len(arguments))(*arguments)
            function, *arguments = function.execution(pointers)
        elif not hasattr(function, "argtypes"):
            return None
        places: dict[int, int] = {}
        integers: list[int] = []
        floats: list[int] = []
        for index, (kind, value) in enumerate(zip(function.argtypes, arguments, strict=True)):
            if kind in _FLOATS:
                floats.append(*struct.unpack("q", struct.pack(_FLOATS[kind], value)))
            else:
                places[index] = len(integers)
                integers.append(_word(value))
        row.function = ctypes.cast(function, ctypes.c_void_p).value
        row.integers[: len(integers)], row.floats[: len(floats)] = integers, floats
        return (row.integers, places) if pointers is None else (pointers, range(len(pointers)))

    def _split(self, first, last):
        """Return [(first, last)] of the calls that are made at once."""
        pieces: list[tuple[int, int]] = []
        start = first
        for number in range(first, last):
            alike = self._places[start] is not None and self._places[number] is not None
            if pieces and alike and number - start < _AT_ONCE:
                pieces[-1] = start, number + 1
            else:
                start = number
                pieces.append((start, start + 1))
        return pieces


_FLOATS = {ctypes.c_float: "f4x", ctypes.c_double: "d"}


def _word(value):
    """Return an integer, or where something lies that the call keeps alive."""
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
    if isinstance(value, ctypes.Array):
        return ctypes.addressof(value)
    return value.value or 0 if isinstance(value, ctypes.c_void_p) else int(value or 0)
