"""A struct array from a MATLAB 5 file, as far as ImageNet's development kit needs it: numbers and texts.

scipy.io.loadmat reads all of the format, but one changed byte can crash the interpreter in it.
The format: "MAT-File Format", The MathWorks, chapter "Level 5 MAT-File Format".
"""

import math
import struct
import zlib

import numpy as np

HEADER = 128
LARGEST = 16 << 20  # bytes that a file may unfold to
MOST_ELEMENTS = 100_000  # in a row; the kit has 15,000
_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_TEXTS = {1: "ascii", 2: "ascii", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
_MATRIX, _PACKED = 14, 15  # types of elements
_STRUCT, _CHARACTERS = 2, 4  # classes of matrices


def read_structs(content, name):
    """Return [{field: number, text, or None for anything else}] of the struct array of a name.

    Raises:
        ValueError: the bytes are no such file.
    """
    if content[126:128] != b"IM":
        raise ValueError("no MATLAB 5 file, or of a big-endian machine")
    room = LARGEST
    for kind, data in _elements(content[HEADER:]):
        if kind == _PACKED:
            unpacked = _unpack(data, room)
            room -= len(unpacked)
            ((kind, data),) = _elements(unpacked)
        if kind == _MATRIX:
            number, shape, found, parts = _matrix(data)
            if number == _STRUCT and found == name.encode():
                return _structs(math.prod(shape), parts)
    raise ValueError(f"no struct array {name}")


def _unpack(data, room):
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, room + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(unpacked) > room or not unpacker.eof:
        raise ValueError("a packed element that is cut or too long")
    return unpacked


def _elements(data):
    """Return [(type, bytes)] of the elements in a row."""
    found, position = [], 0
    while position < len(data):
        (tag,) = struct.unpack_from("<I", data, position)
        if tag >> 16:  # a small one: type, size and up to four bytes in eight
            kind, size, begin = tag & 0xFFFF, tag >> 16, position + 4
            position += 8
            if size > 4:
                raise ValueError("a small element that is none")
        else:
            kind, size = struct.unpack_from("<II", data, position)
            begin = position + 8
            position = begin + size + (0 if kind == _PACKED else -size % 8)
        content = data[begin : begin + size]
        if len(content) != size:
            raise ValueError("an element is cut")
        found.append((kind, content))
        if len(found) > MOST_ELEMENTS:
            raise ValueError("too many elements")
    return found


def _matrix(data):
    """Return (class, shape, name, elements of the content) of a matrix."""
    (_, flags), (_, shape), (_, name), *parts = _elements(data)
    return flags[0], np.frombuffer(shape, "<i4").tolist(), name, parts


def _structs(count, parts):
    (_, length), (_, names), *values = parts
    (length,) = struct.unpack("<i", length)
    if length < 1 or len(names) % length:
        raise ValueError("names of fields that are none")
    fields = [names[begin : begin + length].split(b"\0")[0].decode("ascii") for begin in range(0, len(names), length)]
    if not fields or count * len(fields) != len(values) or any(kind != _MATRIX for kind, _ in values):
        raise ValueError("another number of values than of fields")
    rows = iter(values)
    return [{field: _value(next(rows)[1]) for field in fields} for _ in range(count)]


def _value(data):
    """Return the number or the text of a matrix, None for any other."""
    if not data:
        return None
    number, _, _, parts = _matrix(data)
    kind, content = parts[0] if parts else (0, b"")
    if number == _CHARACTERS and kind in _TEXTS:
        return content.decode(_TEXTS[kind])
    if number > 5 and kind in _NUMBERS and len(content) == np.dtype(_NUMBERS[kind]).itemsize:
        return np.frombuffer(content, _NUMBERS[kind])[0].item()
    return None
