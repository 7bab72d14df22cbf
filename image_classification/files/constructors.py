"""What the names in a pickle stand for: arrays, tensors, dicts, and data that is left out.

A constructor is called as ``build(unpickler, *arguments)`` with values that anybody may have chosen; it pays
(``unpickler.pay``) for what it makes beyond what the file holds.
"""

import math
import pickle
from typing import NamedTuple

import numpy as np

NUMPY_DTYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
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
MOST_AXES = 32
LARGEST = 1 << 40  # elements of a side, a stride, a storage
BYTES_A_STEP = 100  # of memory beyond the file's own that count as one step; of the file that allow for one


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


class LeftOut(NamedTuple):
    """A harmless class, and any object of it: it takes whatever it is given and keeps nothing."""

    name: str


class Unknown(NamedTuple):
    """A name that means nothing here; an error as soon as the pickle does anything with it."""

    name: str


class Constructor(NamedTuple):
    """A stand-in for a callable that a pickle may name."""

    build: object


class DType:
    """A stand-in for numpy.dtype; the byte order arrives later."""

    __slots__ = ("code",)

    def __init__(self, _unpickler, code, *_flags):
        if type(code) is not str or code not in NUMPY_DTYPES:
            raise pickle.UnpicklingError(f"the NumPy dtype {brief(code)}")
        self.code = code

    def set_state(self, _unpickler, state):
        """Take the byte order."""
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise pickle.UnpicklingError("numbers that are not little-endian")


class EmptyArray:
    """A stand-in for an array that has no content yet; the unpickler puts the array into its places."""

    __slots__ = ("places",)

    def __init__(self, _unpickler, *_arguments):
        self.places = []  # indices in the memo

    def set_state(self, unpickler, state):
        """Return the array."""
        if type(state) is not tuple or len(state) != 5:
            raise pickle.UnpicklingError("an array without content")
        _version, shape, dtype, fortran, content = state
        return to_array(unpickler, content, dtype, shape, "F" if fortran else "C")


def brief(value):
    """Return a value for a message: text and numbers by their beginning, anything else by its type."""
    if isinstance(value, str | bytes):
        return repr(value[:60]) + ("..." if len(value) > 60 else "")
    return repr(value) if isinstance(value, int | float | None) else f"a {type(value).__name__}"


def is_size(value):
    """Return whether a value is an integer that a side, a stride or a storage can have."""
    return type(value) is int and 0 <= value < LARGEST


def are_sizes(values):
    """Return whether a value is a tuple of such integers that a shape or strides can be."""
    return type(values) is tuple and len(values) <= MOST_AXES and all(map(is_size, values))


def to_array(unpickler, content, dtype, shape, order="C"):
    """Return the array, a view of `content` where that is possible."""
    if type(content) is str:  # bytes of Python 2, or of protocol 2
        content = encode(unpickler, content, "latin1")
    if not isinstance(content, bytes | bytearray) or type(dtype) is not DType:
        raise pickle.UnpicklingError("an array whose content is not numbers")
    kind = np.dtype(dtype.code)
    if not are_sizes(shape) or math.prod(shape) * kind.itemsize != len(content) or order not in ("C", "F"):
        raise pickle.UnpicklingError("an array whose shape is not that of its content")
    return np.frombuffer(content, kind).reshape(shape, order=order)


def scalar(unpickler, dtype, content):
    """numpy.core.multiarray.scalar: return an array without axes."""
    return to_array(unpickler, content, dtype, ())


def from_buffer(unpickler, content, dtype, shape, order):
    """numpy.core.numeric._frombuffer, of protocol 5."""
    return to_array(unpickler, content, dtype, shape, order)


def rebuild_tensor(_unpickler, storage, offset, shape, stride, *_autograd):
    """torch._utils._rebuild_tensor_v2: return a TorchTensor that lies within its storage."""
    if type(storage) is not Storage:
        raise pickle.UnpicklingError("a tensor without storage")
    if not (is_size(offset) and are_sizes(shape) and are_sizes(stride) and len(shape) == len(stride)):
        raise pickle.UnpicklingError("a tensor of impossible shape")
    count = math.prod(shape)
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if count > storage.size or (count and last >= storage.size):
        raise pickle.UnpicklingError(f"a tensor of {count} elements in a storage of {storage.size}")
    return TorchTensor(storage, offset, shape, stride)


def rebuild_parameter(_unpickler, tensor, *_autograd):
    """torch._utils._rebuild_parameter: return the tensor."""
    return tensor


def encode(unpickler, text, encoding):
    """_codecs.encode, by which Python 3 writes bytes in protocol 2."""
    if encoding != "latin1" or type(text) is not str:
        raise pickle.UnpicklingError(f"the encoding {brief(encoding)}")
    unpickler.pay(len(text) // BYTES_A_STEP)
    return text.encode("latin1")


def to_tuple(unpickler, values=()):
    """builtins.tuple, torch.Size."""
    if type(values) not in (list, tuple):
        raise pickle.UnpicklingError("a tuple of what is no list")
    unpickler.pay(len(values) // 10)
    return tuple(values)


def to_dict(unpickler, *arguments):
    """OrderedDict([pairs]), defaultdict(factory), Counter({...})."""
    result = {}
    source = arguments[-1] if arguments else ()
    if isinstance(source, dict):
        source = source.items()
    if type(source) in (list, tuple) or isinstance(source, type({}.items())):
        unpickler.pay(len(source))
        for key, value in source:
            unpickler.put(result, key, value)
    return result


def no_bytes(_unpickler):
    """builtins.bytes: protocol 2 has no empty bytes."""
    return b""


_NUMPY = {
    "_reconstruct": Constructor(EmptyArray),
    "scalar": Constructor(scalar),
    "_frombuffer": Constructor(from_buffer),
    "ndarray": Constructor(EmptyArray),
    "dtype": Constructor(DType),
}
_DICT = Constructor(to_dict)
_TUPLE = Constructor(to_tuple)
# What training scripts keep beside the weights: their arguments, paths and times.
_HARMLESS = {
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "builtins": ("set", "frozenset", "slice", "complex", "list", "dict", "int", "float", "str", "bool"),
    "__builtin__": ("set", "frozenset", "slice", "complex", "list", "dict", "int", "float", "str", "bool"),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath"),
    "pathlib._local": ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath"),
    "datetime": ("datetime", "date", "time", "timedelta"),
    "torch": (
        "device", "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
        "contiguous_format", "channels_last", "strided",
    ),
    "torch.serialization": ("_get_layout",),
    "yacs.config": ("CfgNode",),
    "easydict": ("EasyDict",),
}  # fmt: skip
CONSTRUCTORS = {
    ("collections", "OrderedDict"): _DICT,
    ("collections", "defaultdict"): _DICT,
    ("collections", "Counter"): _DICT,
    ("_codecs", "encode"): Constructor(encode),
    ("builtins", "tuple"): _TUPLE,  # paddle.save writes (name, array) pairs this way
    ("__builtin__", "tuple"): _TUPLE,
    ("__builtin__", "bytes"): Constructor(no_bytes),
    ("torch", "Size"): _TUPLE,
    ("torch._utils", "_rebuild_tensor_v2"): Constructor(rebuild_tensor),
    ("torch._utils", "_rebuild_tensor"): Constructor(rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): Constructor(rebuild_parameter),
    **{("torch", name): StorageType(dtype) for name, dtype in TORCH_DTYPES.items()},
    **{(module, name): build for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy",
                                            "numpy.core.numeric", "numpy._core.numeric")
       for name, build in _NUMPY.items()},
    **{(module, name): LeftOut(f"{module}.{name}") for module, names in _HARMLESS.items() for name in names},
}  # fmt: skip
