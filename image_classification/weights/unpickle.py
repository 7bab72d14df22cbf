"""Pickles of tensors, arrays, numbers, text, lists and dicts, and nothing else.

A pickle is a program. This one is run by the standard library's own interpreter in Python, with three changes: names
resolve to the stand-ins below or to an error, opcodes that build objects of any other kind are errors, and nothing sets
attributes. Python's interpreter, not the C one, because the C one reserves memory for whatever memo index a file names.
No torch, no Paddle and none of their code is needed or run.
"""

import collections
import math
import os
import pickle
from typing import NamedTuple

import numpy as np

from ..runtime import UserError

TORCH_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


class StorageType(NamedTuple):
    """What `torch.FloatStorage` and its like stand for."""

    dtype: str


class Storage(NamedTuple):
    """A torch storage that a pickle refers to; its bytes lie elsewhere in the file."""

    dtype: str
    key: str
    size: int  # elements


class TorchTensor(NamedTuple):
    """A torch tensor: a window on a storage, in elements."""

    storage: Storage
    offset: int
    shape: tuple
    stride: tuple


class _Builder:
    """A stand-in for a callable that a pickle may name; it has no attributes that a pickle could set."""

    __slots__ = ("build",)

    def __init__(self, build):
        self.build = build


class _DType:
    """A stand-in for numpy.dtype; the byte order arrives later, by BUILD."""

    __slots__ = ("code", "order")

    def __init__(self, code, *_flags):
        if not isinstance(code, str) or np.dtype(code).kind not in "biuf":
            raise pickle.UnpicklingError(f"the NumPy dtype {code!r}")
        self.code = code
        self.order = "|"

    def set_state(self, state):
        if state[1] not in ("<", "|", "="):
            raise pickle.UnpicklingError("big-endian numbers")
        self.order = state[1]


class _Array:
    """A stand-in for numpy.ndarray; shape, type and bytes arrive by BUILD."""

    __slots__ = ("value",)

    def __init__(self, *_empty):
        self.value = None

    def set_state(self, state):
        _version, shape, dtype, fortran, content = state
        self.value = _to_array(content, dtype, shape, "F" if fortran else "C")


def _to_array(content, dtype, shape, order="C"):
    if isinstance(content, str):  # bytes of Python 2, or of protocol 2
        content = content.encode("latin1")
    if not isinstance(content, bytes) or not isinstance(dtype, _DType):
        raise pickle.UnpicklingError("an array whose content is not numbers")
    return np.frombuffer(content, np.dtype(dtype.code)).reshape(shape, order=order)


def _scalar(dtype, content):
    return _to_array(content, dtype, ())


def _from_buffer(content, dtype, shape, order):
    return _to_array(bytes(content), dtype, shape, order)


def _rebuild_tensor(storage, offset, shape, stride, *_autograd):
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without storage")
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or any(type(number) is not int or number < 0 for number in numbers):
        raise pickle.UnpicklingError("a tensor of impossible shape")
    count = math.prod(shape)
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if count > storage.size or (count and last >= storage.size):
        raise pickle.UnpicklingError(f"a tensor of {count} elements in a storage of {storage.size}")
    return TorchTensor(storage, offset, tuple(shape), tuple(stride))


def _encode(text, encoding):
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"the encoding {encoding!r}")
    return text.encode("latin1")


def _ordered_dict(*items):
    return dict(*items)


_NUMPY = {
    "_reconstruct": _Builder(_Array),
    "scalar": _Builder(_scalar),
    "_frombuffer": _Builder(_from_buffer),
    "ndarray": _Builder(_Array),
    "dtype": _Builder(_DType),
}
_ALLOWED = {
    ("collections", "OrderedDict"): _Builder(_ordered_dict),
    ("_codecs", "encode"): _Builder(_encode),
    ("builtins", "tuple"): _Builder(tuple),  # paddle.save writes (name, array) pairs this way
    ("__builtin__", "tuple"): _Builder(tuple),
    ("__builtin__", "bytes"): _Builder(lambda: b""),  # protocol 2 has no empty bytes
    ("torch", "Size"): _Builder(tuple),
    ("torch._utils", "_rebuild_tensor_v2"): _Builder(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor"): _Builder(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Builder(lambda tensor, *_autograd: tensor),
    **{("torch", name): StorageType(dtype) for name, dtype in TORCH_DTYPES.items()},
    **{(module, name): build for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy",
                                            "numpy.core.numeric", "numpy._core.numeric")
       for name, build in _NUMPY.items()},
}  # fmt: skip

# Opcodes that make objects of arbitrary classes or use copyreg's extension registry.
_REFUSED = (
    pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4,
    pickle.PERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


def _refuse(unpickler):
    raise pickle.UnpicklingError("an opcode that builds other objects than tensors")


class _Bounded:
    """A file whose reads reserve no more memory than it has bytes left, whatever length a pickle claims."""

    def __init__(self, file):
        self.file = file
        self.readline = file.readline
        begin = file.tell()
        self.end = file.seek(0, os.SEEK_END)
        file.seek(begin)

    def read(self, size):
        return self.file.read(min(size, self.end - self.file.tell()))


class _TensorUnpickler(pickle._Unpickler):
    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, file):
        super().__init__(_Bounded(file), encoding="latin1")  # text of Python 2, arrays included, keeps its bytes

    def find_class(self, module, name):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}, which is no part of a tensor") from None

    def persistent_load(self, pid):
        kind, storage_type, key, _device, size, *view = pid
        if kind != "storage" or not isinstance(storage_type, StorageType) or any(view):
            raise pickle.UnpicklingError(f"the reference {kind!r}")
        if not isinstance(key, str) or type(size) is not int or size < 0:
            raise pickle.UnpicklingError("a storage of impossible size")
        return Storage(storage_type.dtype, key, size)

    def load_reduce(self):
        arguments = self.stack.pop()
        builder = self.stack[-1]
        if not isinstance(builder, _Builder) or not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("a call of something that is no tensor")
        self.stack[-1] = builder.build(*arguments)

    def load_build(self):
        state = self.stack.pop()
        if isinstance(self.stack[-1], _DType | _Array):
            self.stack[-1].set_state(state)
        elif not isinstance(self.stack[-1], dict):  # an OrderedDict's attributes are of no use here
            raise pickle.UnpicklingError("attributes of something that is no tensor")

    def load_bytearray8(self):
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    dispatch.update({opcode[0]: _refuse for opcode in _REFUSED})
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.BUILD[0]] = load_build


def load_pickle(file, path):
    """Return what the next pickle of a binary file holds: dicts, lists, tuples, plain values, arrays, TorchTensors.

    Raises:
        UserError: it is cut, damaged, or asks for anything else; nothing of it has been run.
    """
    try:
        return _resolve(_TensorUnpickler(file).load())
    except MemoryError:
        raise UserError(f"{path}: refused: it asks for more memory than there is") from None
    except pickle.UnpicklingError as error:
        if "truncated" in str(error) or "exhausted" in str(error):
            raise UserError(f"{path}: is damaged or cut: {error}") from None
        raise UserError(f"{path}: refused: it holds {error}") from None
    except Exception as error:  # a hostile or cut pickle can raise nearly anything
        raise UserError(f"{path}: is damaged or cut: {type(error).__name__} {str(error)[:80]}".strip()) from None


def _resolve(tree):
    """Return the tree with finished arrays in place of their stand-ins; walks it without recursion."""
    root = [tree]
    todo = collections.deque([root])
    seen = {}
    while todo:
        node = todo.popleft()
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(value, _Array):
                node[key] = value.value
            elif type(value) is tuple:
                if id(value) not in seen:
                    seen[id(value)] = (value, list(value))
                    todo.append(seen[id(value)][1])
                node[key] = seen[id(value)][1]
            elif isinstance(value, dict | list) and id(value) not in seen:
                seen[id(value)] = (value, value)
                todo.append(value)
    return root[0]
