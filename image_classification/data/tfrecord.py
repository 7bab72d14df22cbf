"""TensorFlow's record files: framing with checksums, index files, and the part of ``tf.train.Example`` that is used.

A record is: uint64 length, uint32 checksum of the length, the data, uint32 checksum of the data; little endian. The
checksum is CRC-32C, rotated right by 15 bits plus a constant, so that a file of checksummed data can be checksummed.
An index file, as DALI's ``tfrecord2idx`` writes it, has a line "offset length" for each record, framing included.
"""

import os
import struct

import crc32c
import numpy as np

from ..files.plain import open_plain, read_plain
from ..runtime import UserError

FRAMING_BYTES = 16
MOST_VALUES = 1 << 16  # of a feature, an image has two
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadRecord(Exception):
    """A record's checksum or content is wrong; the text says which."""


def masked_crc(data):
    """Return the masked CRC-32C of bytes."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(data):
    """Return the record that holds ``data``."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CHECKSUM.pack(masked_crc(length)), data, _CHECKSUM.pack(masked_crc(data))))


def unframe(record):
    """Return the data of one whole record.

    Raises:
        BadRecord: a length or a checksum does not fit.
    """
    view = memoryview(record)
    expected = len(view) - FRAMING_BYTES
    if expected < 0:
        raise BadRecord(f"{len(view)} bytes are no record")
    length, checksum = _HEADER.unpack_from(view)
    if checksum != masked_crc(view[:8]):
        raise BadRecord("wrong checksum of the length")
    if length != expected:
        raise BadRecord(f"the record has {length} bytes, {expected} were expected")
    data = view[12:-4]
    if _CHECKSUM.unpack_from(view, len(view) - 4)[0] != masked_crc(data):
        raise BadRecord("wrong checksum of the data")
    return data


def scan_records(path):
    """Return int64 [N, 2] of (offset, length with framing) by following the lengths through the file.

    Raises:
        UserError: naming file and offset of a wrong length checksum or a cut end; the file is empty.
    """
    offset, found = 0, []
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise UserError(f"{path}: an empty file: was it copied whole? Without an index file nobody could tell")
        while offset < size:
            header = os.pread(file.fileno(), 12, offset)
            if len(header) < 12 or _CHECKSUM.unpack_from(header, 8)[0] != masked_crc(header[:8]):
                raise UserError(f"{path} at offset {offset}: wrong checksum of the length, or no TFRecord file")
            length = _LENGTH.unpack_from(header)[0] + FRAMING_BYTES
            if offset + length > size:
                raise UserError(f"{path} at offset {offset}: the file ends inside a record")
            found.append((offset, length))
            offset += length
    return np.array(found, np.int64).reshape(-1, 2)


def read_index(index_path, path):
    """Return int64 [N, 2] of (offset, length with framing) from the index file of ``path``.

    Raises:
        UserError: a line is malformed, or the index is not of this file.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
    # an entry has fewer bytes than twice those of the smallest record
    text = read_plain(index_path, 2 * size + (1 << 20))
    if text.translate(None, b"0123456789 \t\r\n"):
        raise UserError(f"{index_path}: is no index file: it has more than numbers")
    numbers = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.zeros(0, np.int64)
    table = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    ends = np.cumsum(table[:, 1])
    whole = len(numbers) % 2 == 0 and len(table) and ((table >= 0) & (table <= size)).all() and ends[-1] == size
    if not whole or (table[:, 0] != ends - table[:, 1]).any() or table[:, 1].min() < FRAMING_BYTES:
        raise UserError(f"{index_path}: does not fit {path}; make it anew or remove it")
    return table


def index_text(positions):
    """Return the content of an index file for rows of (offset, length with framing)."""
    return "".join(f"{offset} {length}\n" for offset, length in positions)


def parse_example(data, names=None):
    """Return {feature name: list of bytes or of integers} of a serialized ``tf.train.Example``; floats are left out.

    Bytes come as memoryviews of ``data``. With ``names``, in UTF-8, only those features are looked at, and nothing
    behind the last of them.

    Raises:
        BadRecord: it is not an Example.
    """
    view, features = memoryview(data), {}
    try:
        for _, body, body_end in _fields(view, 0, len(view), (1,)):  # Example.features
            for _, start, end in _fields(view, body, body_end, (1,)):  # Features.feature, a map entry
                if view[start] == 0x0A and view[start + 1] < 0x80:  # a short name that comes first, as usual
                    value = start + 2 + view[start + 1]
                    name, start = bytes(view[start + 2 : value]), value
                else:
                    ((_, first, last),) = _fields(view, start, end, (1,))
                    name = bytes(view[first:last])
                if names is None or name in names:
                    for _, first, last in _fields(view, start, end, (2,)):
                        features[str(name, "utf-8")] = _feature_values(view, first, last)
                    if names is not None and len(features) == len(names):
                        return features
    except (IndexError, TypeError, ValueError) as error:
        raise BadRecord(f"no tf.train.Example ({error})") from error
    return features


def _feature_values(view, start, end):
    for number, values, values_end in _fields(view, start, end, (1, 3)):
        if number == 1:  # BytesList
            return [view[first:last] for _, first, last in _fields(view, values, values_end, (1,))]
        integers = []  # Int64List, packed or not
        for _, first, last in _fields(view, values, values_end, (1,)):
            integers += [first] if last is None else _packed_integers(view, first, last)
        return [value - (1 << 64) if value >> 63 else value for value in integers]
    return []


def _packed_integers(view, position, end):
    integers = []
    while position < end:
        value, position = _varint(view, position)
        integers.append(value)
        if len(integers) > MOST_VALUES:
            raise ValueError("too many values")
    return integers


def _fields(view, position, end, wanted):
    """Return [(number, start, end)] of the fields with the wanted numbers of the protocol-buffer message at a place.

    Places and not slices, which would take as long as all the rest. An integer is (number, value, None).
    """
    found = []
    while position < end:
        tag = view[position]
        position += 1
        if tag > 0x7F:  # the usual tag is one byte
            tag, position = _varint(view, position - 1)
        kind = tag & 7
        if kind == _BYTES:
            length = view[position]
            position += 1
            if length > 0x7F:  # as _varint, without the price of a call: each level of a record has such a length
                length, byte, shift = length & 0x7F, 0x80, 7
                while byte > 0x7F and shift < 64:
                    byte = view[position]
                    position += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
            start = position
            position += length
            if tag >> 3 in wanted:
                found.append((tag >> 3, start, position))
        elif kind == _VARINT:
            value, position = _varint(view, position)
            if tag >> 3 in wanted:
                found.append((tag >> 3, value, None))
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if len(found) > MOST_VALUES:
            raise ValueError("too many values")
    if position != end:
        raise ValueError("a field is cut")
    return found


def _varint(view, position):
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("an integer is too long")


def serialize_example(features):
    """Return a serialized ``tf.train.Example`` for {name: bytes, text or integer}, names in sorted order."""
    entries = []
    for name, value in sorted(features.items()):
        if isinstance(value, int):
            feature = _message(3, _message(1, _encode_varint(value & (1 << 64) - 1)))  # packed Int64List
        else:
            feature = _message(1, _message(1, value.encode() if isinstance(value, str) else value))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _message(number, body):
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(body)) + body


def _encode_varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
