"""Weight files to arrays: safetensors, PyTorch (zip and legacy), Paddle's and our own pickles, told apart by content.

Arrays are views into the mapped file where the format allows it, so reading costs no memory of its own. bfloat16 comes
as float32, which holds each of its values exactly.
"""

import json
import math
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..runtime import UserError
from .unpickle import TorchTensor, load_pickle

SAFETENSORS_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
HEADER_LIMIT = 100 << 20  # bytes, the limit of the safetensors library
# the number 0x1950a86a20f9469cfc6c, pickled, begins every torch.save file before PyTorch 1.6
TORCH_LEGACY_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
# Where a training state keeps the model; the average is what its authors evaluate.
WRAPPERS = ("model_ema", "state_dict_ema", "model", "state_dict")
DECODE_LIMIT = 2  # bytes of tensors for each byte of the file: some are tied, none overlap a hundred times


class WeightFile(NamedTuple):
    """The tensors of a file by name; `layout` is "torch" (a linear weight is [out, in]) or "paddle" ([in, out])."""

    tensors: dict
    layout: str
    kind: str


def read_weights(path):
    """Return the :class:`WeightFile` of a file.

    Raises:
        UserError: no known format, cut, damaged, or asking for anything but tensors.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if start.startswith(b"PK\x03\x04"):
        return _finish(path, _read_torch_zip(path), "torch", "PyTorch zip")
    if start.startswith(TORCH_LEGACY_MAGIC):
        return _finish(path, _read_torch_legacy(path), "torch", "PyTorch legacy")
    if len(start) > 8 and start[8:9] == b"{":
        return _finish(path, _read_safetensors(path), "torch", "safetensors")
    if start[:1] == pickle.PROTO:
        with open(path, "rb") as file:
            return _finish(path, load_pickle(file, path), "paddle", "Paddle pickle")
    hint = "; it is a web page, not weights" if start.lstrip()[:1] == b"<" else ""
    raise UserError(f"{path}: no weight file: expected safetensors, PyTorch .pth or Paddle .pdparams{hint}")


def _finish(path, tree, layout, kind):
    tensors = _unwrap(tree)
    if not tensors:
        raise UserError(f"{path}: holds no tensors by name")
    return WeightFile(tensors, layout, kind)


def _unwrap(tree):
    """Return the named tensors of a file's content, from within a training state if it is one."""
    if not isinstance(tree, dict):
        return {}
    for key in WRAPPERS:
        if isinstance(tree.get(key), dict):
            return _unwrap(tree[key])
    pieces = tree.pop("UnpackBigParamInfor@@", None)  # paddle.save splits arrays of 2^30 elements in protocols 2 and 3
    tensors = {}
    for name, value in tree.items():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[1], np.ndarray):
            value = value[1]  # paddle.save's (parameter's own name, array)
        if isinstance(value, np.ndarray) and isinstance(name, str):
            tensors[name.removeprefix("module.")] = value
    for name, info in (pieces or {}).items():
        tensors[name] = np.concatenate([tensors.pop(part) for part in info["slices"]]).reshape(info["OriginShape"])
    return tensors


def _decode(raw, dtype):
    """Return a one-dimensional array of the bytes in `raw`."""
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<"))


def _size_of(dtype):
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _map(path):
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read_safetensors(path):
    content = _map(path)
    size = int.from_bytes(content[:8], "little")
    if size > min(HEADER_LIMIT, len(content) - 8):
        raise UserError(f"{path}: is damaged or cut: its header claims {size} bytes")
    tensors = {}
    try:
        header = json.loads(bytes(content[8 : 8 + size]))
        header.pop("__metadata__", None)
        data = content[8 + size :]
        for name, entry in header.items():
            dtype, shape, (begin, end) = SAFETENSORS_DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * _size_of(dtype):
                raise UserError(f"{path}: is damaged or cut at tensor {name}")
            tensors[name] = _decode(data[begin:end], dtype).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: is damaged: its safetensors header is wrong ({type(error).__name__})") from None
    return tensors


def _read_torch_zip(path):
    content = _map(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if "data.pkl" not in entries:
                raise UserError(f"{path}: is a zip archive but not one of torch.save")
            # torch.save compresses nothing, so an entry that would unfold to more than its bytes is no entry of it
            sizes = [(info.file_size, info.compress_size, info.compress_type) for info in entries.values()]
            if any(full != packed or kind != zipfile.ZIP_STORED for full, packed, kind in sizes):
                raise UserError(f"{path}: refused: a compressed archive is not one of torch.save")
            if sum(full for full, _, _ in sizes) > len(content):
                raise UserError(f"{path}: refused: its entries overlap")
            if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
                raise UserError(f"{path}: was written on a big-endian machine")
            with archive.open(entries["data.pkl"]) as file:
                tree = load_pickle(file, path)
            storages = {
                name.removeprefix("data/"): _entry(content, info)
                for name, info in entries.items()
                if name.startswith("data/")
            }
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, UnicodeDecodeError, IndexError) as error:
        raise UserError(f"{path}: is damaged or cut: {str(error)[:80]}") from None
    return _fill_in(path, tree, storages)


def _entry(content, info):
    """Return the bytes of a stored zip entry: its local header is 30 bytes, then a name and an extra field."""
    header = info.header_offset
    name_size, extra_size = (int.from_bytes(content[header + at : header + at + 2], "little") for at in (26, 28))
    begin = header + 30 + name_size + extra_size
    return content[begin : begin + info.file_size]


def _read_torch_legacy(path):
    with open(path, "rb") as file:
        _magic, protocol, machine = (load_pickle(file, path) for _ in range(3))
        if protocol != 1001 or not isinstance(machine, dict) or machine.get("little_endian") is not True:
            raise UserError(f"{path}: an unknown form of PyTorch's legacy format")
        tree = load_pickle(file, path)
        keys = load_pickle(file, path)
        begin = file.tell()
    content = _map(path)
    dtypes = {}
    _walk(tree, lambda tensor: dtypes.setdefault(tensor.storage.key, tensor.storage.dtype))
    storages = {}
    for key in keys if isinstance(keys, list) else []:
        size = int.from_bytes(content[begin : begin + 8], "little") * _size_of(dtypes.get(key, "float32"))
        storages[key] = content[begin + 8 : begin + 8 + size]
        begin += 8 + size
    return _fill_in(path, tree, storages)


def _fill_in(path, tree, storages):
    """Return the tree with each TorchTensor as an array."""
    budget = _budget(path)
    unfolded = 0

    def to_array(tensor):
        nonlocal unfolded
        storage, size = tensor.storage, _size_of(tensor.storage.dtype)
        raw = storages.get(storage.key, b"")
        if len(raw) < storage.size * size:
            raise UserError(f"{path}: is cut: storage {storage.key} has {len(raw)} of {storage.size * size} bytes")
        unfolded += math.prod(tensor.shape) * size
        if unfolded > budget:
            raise UserError(f"{path}: refused: its tensors overlap and would unfold to more than {budget >> 20} MB")
        extent = 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride, strict=True))
        extent = extent if math.prod(tensor.shape) else 0
        flat = _decode(raw[tensor.offset * size : (tensor.offset + extent) * size], storage.dtype)
        strides = [step * flat.itemsize for step in tensor.stride]
        return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)

    return _walk(tree, to_array)


def _budget(path):
    return DECODE_LIMIT * path.stat().st_size + (1 << 20)


def _walk(tree, change):
    """Return a dict of dicts with `change` applied to its tensors; other values are dropped."""
    if not isinstance(tree, dict):
        return {}
    result = {}
    for name, value in tree.items():
        if isinstance(value, TorchTensor):
            result[name] = change(value)
        elif isinstance(value, dict) and name in WRAPPERS:
            result[name] = _walk(value, change)
    return result
