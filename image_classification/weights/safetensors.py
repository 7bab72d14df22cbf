"""safetensors: a JSON header with the type, shape and place of each tensor, and their bytes without gap or overlap.

https://github.com/huggingface/safetensors, section "Format".
"""

import json
import math

import numpy as np

from ..files.constructors import are_sizes, brief
from ..runtime import UserError

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
# The library allows 100 MB, which as JSON can become 2 GB of objects; a tensor takes some 100 bytes.
HEADER_LIMIT = 8 << 20
CONFIG = "image_classification.config"  # others call what they please "config"


def decode(raw, dtype):
    """Return a one-dimensional array of the bytes in `raw`; bfloat16 becomes float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<"))


def size_of(dtype):
    """Return the bytes of an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def read_safetensors(path, content):
    """Return ({name: array}, the text `CONFIG` of the metadata or None) of a file's content.

    Raises:
        UserError: the header is cut or malformed, or the tensors are not exactly what follows it.
    """
    size = int.from_bytes(content[:8], "little")
    if size > min(HEADER_LIMIT, len(content) - 8):
        raise UserError(f"{path}: is damaged or cut: its header claims {size} bytes")
    try:
        header = json.loads(bytes(content[8 : 8 + size]).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is damaged: its header is no JSON ({str(error)[:80]})") from None
    data = content[8 + size :]
    metadata = header.pop("__metadata__", None)
    config = metadata.get(CONFIG) if isinstance(metadata, dict) else None
    places = {name: _place(path, name, entry) for name, entry in header.items()}
    position = 0
    for name, (_, _, begin, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        if begin != position:
            raise UserError(f"{path}: is damaged or cut at tensor {name}: tensors overlap, or leave bytes between them")
        position = end
    if position != len(data):
        raise UserError(f"{path}: is damaged or cut: its tensors have {position} bytes, {len(data)} follow the header")
    return {
        name: decode(data[begin:end], dtype).reshape(shape) for name, (dtype, shape, begin, end) in places.items()
    }, config if isinstance(config, str) else None


def _unique(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _place(path, name, entry):
    """Return (dtype, shape, begin, end) of a header's entry."""
    entry = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in DTYPES:
        raise UserError(f"{path}: tensor {name}: the type {brief(kind)} is not read; {', '.join(DTYPES)} are")
    shape, offsets = (tuple(value) if isinstance(value, list) else None for value in (shape, offsets))
    fits = are_sizes(shape) and are_sizes(offsets) and len(offsets) == 2
    if not fits or offsets[1] - offsets[0] != math.prod(shape) * size_of(DTYPES[kind]):
        raise UserError(f"{path}: is damaged or cut at tensor {name}: its shape does not fit its bytes")
    return DTYPES[kind], shape, *offsets
