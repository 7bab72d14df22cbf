"""The opcodes of pickles, protocols 2 to 5, that plain data needs: {opcode: what it does to an unpickler}.

Those are missing that build objects of any class, name an extension registry, use buffers beside the file, or are
written for values that hold themselves.
"""

import pickle
import struct

from .constructors import LeftOut

LONGEST_NUMBER = 32  # bytes
_U1, _U2, _U4, _U8, _I4, _F8 = map(struct.Struct, ("<B", "<H", "<I", "<Q", "<i", ">d"))
_SET = LeftOut("builtins.set")


def _push(value):
    return lambda self: self.stack.append(value)


def _protocol(self):
    version = self.number(_U1)
    if not 2 <= version <= 5:
        raise pickle.UnpicklingError(f"protocol {version}; 2 to 5 are read")


def _long(self, size):
    if not 0 <= size <= LONGEST_NUMBER:
        raise pickle.UnpicklingError(f"a number of {size} bytes")
    self.stack.append(int.from_bytes(self.take(size), "little", signed=True))


def _stack_global(self):
    name = self.stack.pop()
    self.name(self.stack.pop(), name)


def _set_item(self):
    value, key = self.stack.pop(), self.stack.pop()
    self.set_items([key, value])


def _append_item(self):
    self.append_items([self.stack.pop()])


def _tuple(self):
    items = self.pop_mark()
    self.stack.append(tuple(items))


def _frozen_set(self):
    self.pop_mark()
    self.stack.append(_SET)


OPCODES = {
    pickle.PROTO: _protocol,
    pickle.FRAME: lambda self: self.require(self.number(_U8)),
    pickle.MARK: lambda self: self.mark(),
    pickle.NONE: _push(None),
    pickle.NEWTRUE: _push(True),
    pickle.NEWFALSE: _push(False),
    pickle.BININT: lambda self: self.stack.append(self.number(_I4)),
    pickle.BININT1: lambda self: self.stack.append(self.number(_U1)),
    pickle.BININT2: lambda self: self.stack.append(self.number(_U2)),
    pickle.LONG1: lambda self: _long(self, self.number(_U1)),
    pickle.LONG4: lambda self: _long(self, self.number(_I4)),
    pickle.BINFLOAT: lambda self: self.stack.append(self.number(_F8)),
    pickle.SHORT_BINUNICODE: lambda self: self.text(self.number(_U1)),
    pickle.BINUNICODE: lambda self: self.text(self.number(_U4)),
    pickle.BINUNICODE8: lambda self: self.text(self.number(_U8)),
    pickle.SHORT_BINSTRING: lambda self: self.python2_text(self.number(_U1)),
    pickle.BINSTRING: lambda self: self.python2_text(self.number(_U4)),
    pickle.SHORT_BINBYTES: lambda self: self.stack.append(self.take(self.number(_U1))),
    pickle.BINBYTES: lambda self: self.stack.append(self.take(self.number(_U4))),
    pickle.BINBYTES8: lambda self: self.stack.append(self.take(self.number(_U8))),
    pickle.BYTEARRAY8: lambda self: self.stack.append(self.take(self.number(_U8))),
    pickle.EMPTY_DICT: lambda self: self.stack.append({}),
    pickle.EMPTY_LIST: lambda self: self.stack.append([]),
    pickle.EMPTY_TUPLE: _push(()),
    pickle.EMPTY_SET: _push(_SET),
    pickle.TUPLE: _tuple,
    pickle.TUPLE1: lambda self: self.pop_tuple(1),
    pickle.TUPLE2: lambda self: self.pop_tuple(2),
    pickle.TUPLE3: lambda self: self.pop_tuple(3),
    pickle.SETITEM: _set_item,
    pickle.SETITEMS: lambda self: self.set_items(self.pop_mark()),
    pickle.APPEND: _append_item,
    pickle.APPENDS: lambda self: self.append_items(self.pop_mark()),
    pickle.ADDITEMS: lambda self: self.append_items(self.pop_mark()),
    pickle.FROZENSET: _frozen_set,
    pickle.BINPUT: lambda self: self.remember(self.number(_U1)),
    pickle.LONG_BINPUT: lambda self: self.remember(self.number(_U4)),
    pickle.MEMOIZE: lambda self: self.remember(len(self.memo)),
    pickle.BINGET: lambda self: self.stack.append(self.memo[self.number(_U1)]),
    pickle.LONG_BINGET: lambda self: self.stack.append(self.memo[self.number(_U4)]),
    pickle.GLOBAL: lambda self: self.name(self.line(), self.line()),
    pickle.STACK_GLOBAL: _stack_global,
    pickle.REDUCE: lambda self: self.reduce(),
    pickle.NEWOBJ: lambda self: self.new_object(),
    pickle.BUILD: lambda self: self.build(),
    pickle.BINPERSID: lambda self: self.persistent(),
}
