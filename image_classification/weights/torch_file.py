"""Files of torch.save without torch: a zip archive, and before PyTorch 1.6 pickles with the storages behind them."""

import io
import math
import zipfile
import zlib

import numpy as np

from ..files.unpickle import load_pickle
from ..files.zip import list_entries
from ..runtime import UserError
from .safetensors import decode, size_of

ZIP_MAGIC = b"PK\x03\x04"
# the number 0x1950a86a20f9469cfc6c, pickled, begins every torch.save file before PyTorch 1.6
LEGACY_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
UNFOLDED = 2  # bytes of tensors for each byte of the file: some are tied, none overlap a hundred times


class TorchFile:
    """The pickle of a torch.save file, and where its storages are.

    Args:
        storage: key -> the bytes of a storage, checked.
    """

    def __init__(self, path, size, pickle, storage):
        self.path = path
        self.size = size
        self.pickle = pickle
        self._storage = storage

    def arrays(self, tensors):
        """Return {name: array} for {name: TorchTensor}."""
        budget = UNFOLDED * self.size + (1 << 20)
        unfolded = sum(math.prod(tensor.shape) * size_of(tensor.storage.dtype) for tensor in tensors.values())
        if unfolded > budget:
            raise UserError(
                f"{self.path}: refused: its tensors overlap and would unfold to more than {budget >> 20} MB"
            )
        storages = {tensor.storage.key: self._storage(tensor.storage.key) for tensor in tensors.values()}
        return {name: self._array(tensor, storages[tensor.storage.key]) for name, tensor in tensors.items()}

    def _array(self, tensor, raw):
        storage, size = tensor.storage, size_of(tensor.storage.dtype)
        if len(raw) < storage.size * size:
            raise UserError(f"{self.path}: is cut: storage {storage.key} has {len(raw)} of {storage.size * size} bytes")
        if not math.prod(tensor.shape):
            return decode(b"", storage.dtype).reshape(tensor.shape)
        extent = 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride, strict=True))
        flat = decode(raw[tensor.offset * size : (tensor.offset + extent) * size], storage.dtype)
        strides = [step * flat.itemsize for step in tensor.stride]
        return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)


def read_zip(path, file, content):
    """Return the :class:`TorchFile` of a zip archive; an entry's checksum is checked when it is asked for.

    Args:
        content: the bytes of the file.

    Raises:
        UserError: the archive is cut, damaged, or not one of torch.save.
    """
    listed = list_entries(path, file)
    entries = {info.filename.partition("/")[2]: info for info in listed}
    if "data.pkl" not in entries:
        raise UserError(f"{path}: is a zip archive but not one of torch.save")
    if len(entries) != len(listed):
        raise UserError(f"{path}: refused: two of its entries have the same name")
    # torch.save compresses nothing, so an entry that would unfold to more than its bytes is no entry of it
    if any(info.file_size != info.compress_size or info.compress_type != zipfile.ZIP_STORED for info in listed):
        raise UserError(f"{path}: refused: a compressed archive is not one of torch.save")
    if sum(info.file_size for info in listed) > len(content):
        raise UserError(f"{path}: refused: its entries overlap")

    def entry(name):
        return _stored(path, content, entries[name]) if name in entries else b""

    if entry("byteorder") not in (b"", b"little"):
        raise UserError(f"{path}: was written on a big-endian machine")
    pickle = load_pickle(io.BytesIO(entry("data.pkl")), path, size=len(content))
    return TorchFile(path, len(content), pickle, lambda key: entry(f"data/{key}"))


def _stored(path, content, info):
    """Return the bytes of a stored zip entry: its local header is 30 bytes, then a name and an extra field."""
    header = content[info.header_offset : info.header_offset + 30]
    name_size, extra_size = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    begin = info.header_offset + 30 + name_size + extra_size
    data = content[begin : begin + info.file_size]
    if header[:4] != ZIP_MAGIC or len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise UserError(f"{path}: is damaged or cut: entry {info.filename} has another checksum than the archive says")
    return data


def read_legacy(path, file, content):
    """Return the :class:`TorchFile` of the format before PyTorch 1.6, which has no checksums.

    Raises:
        UserError: it is cut, damaged, or another form of it.
    """
    file.seek(0)
    _magic, protocol, machine = (load_pickle(file, path).tree for _ in range(3))
    if protocol != 1001 or not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise UserError(f"{path}: an unknown form of PyTorch's legacy format")
    pickle = load_pickle(file, path)
    keys = load_pickle(file, path).tree
    known = isinstance(keys, list) and all(type(key) is str for key in keys)
    if not known or sorted(keys) != sorted(pickle.storages):
        raise UserError(f"{path}: is damaged or cut: its list of storages is not that of its tensors")
    begin, storages = file.tell(), {}
    for key in keys:
        size = int.from_bytes(content[begin : begin + 8], "little") * size_of(pickle.storages[key].dtype)
        storages[key] = content[begin + 8 : begin + 8 + size]
        begin += 8 + size
    if begin != len(content):
        raise UserError(f"{path}: is damaged or cut: its storages end at {begin} of {len(content)} bytes")
    return TorchFile(path, len(content), pickle, storages.__getitem__)
