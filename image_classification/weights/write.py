"""Arrays to weight files: safetensors, PyTorch's zip format (without torch) and Paddle's pickle."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np

from ..files.constructors import TORCH_DTYPES
from ..files.pickle_file import dump_pickle
from ..runtime import UserError, atomic_write
from .safetensors import CONFIG, DTYPES

SAFETENSORS_CODES = {dtype: code for code, dtype in DTYPES.items()}
TORCH_STORAGES = {dtype: storage for storage, dtype in TORCH_DTYPES.items()}


def writer_of(path):
    """Return the function (file, arrays) that writes the format of a file's ending.

    Raises:
        UserError: an ending other than .safetensors, .pth, .pt or .pdparams.
    """
    writers = {".safetensors": _safetensors, ".pth": _torch, ".pt": _torch, ".pdparams": _paddle}
    ending = Path(path).suffix
    if ending not in writers:
        raise UserError(f"{path}: cannot write {ending or 'a file without ending'!r}: allowed are {', '.join(writers)}")
    return writers[ending]


def write_weights(path, tensors, config=None):
    """Write named arrays in the format of the file's ending; the layout of the arrays is the caller's business.

    Args:
        config: text that safetensors alone hold beside the arrays, the part of the configuration that belongs to them.

    Raises:
        UserError: as :func:`writer_of`.
    """
    write = writer_of(path)
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    with atomic_write(path) as file:
        write(file, arrays, *(() if config is None else (config,)))


def _safetensors(file, arrays, config=None):
    header = {"__metadata__": {"format": "pt"} | ({} if config is None else {CONFIG: config})}
    begin = 0
    for name, array in arrays.items():
        end = begin + array.nbytes
        code = SAFETENSORS_CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays.values():
        file.write(array.data)


def _paddle(file, arrays):
    dump_pickle(arrays, file)


def _torch(file, arrays):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", _torch_pickle(arrays))
        archive.writestr("archive/byteorder", b"little")
        for index, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{index}", array.tobytes())
        archive.writestr("archive/version", b"3\n")


def _torch_pickle(arrays):
    """Return the pickle that torch.save would write for {name: tensor}, as opcodes: a pickler would need torch."""
    out = io.BytesIO()
    out.write(pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK)
    for index, (name, array) in enumerate(arrays.items()):
        stride = [step // array.itemsize for step in array.strides]
        _text(out, name)
        _global(out, "torch._utils", "_rebuild_tensor_v2")
        out.write(pickle.MARK)  # the arguments: storage, offset, shape, stride, requires_grad, hooks
        out.write(pickle.MARK)
        _text(out, "storage")
        _global(out, "torch", TORCH_STORAGES[array.dtype.name])
        _text(out, str(index))
        _text(out, "cpu")
        _number(out, array.size)
        out.write(pickle.TUPLE + pickle.BINPERSID)
        _number(out, 0)
        for numbers in (array.shape, stride):
            out.write(pickle.MARK)
            for number in numbers:
                _number(out, number)
            out.write(pickle.TUPLE)
        out.write(pickle.NEWFALSE)
        _global(out, "collections", "OrderedDict")
        out.write(pickle.EMPTY_TUPLE + pickle.REDUCE)
        out.write(pickle.TUPLE + pickle.REDUCE)
    out.write(pickle.SETITEMS + pickle.STOP)
    return out.getvalue()


def _text(out, text):
    data = text.encode()
    out.write(pickle.BINUNICODE + struct.pack("<I", len(data)) + data)


def _number(out, number):
    data = int(number).to_bytes(8, "little", signed=True)
    out.write(pickle.LONG1 + b"\x08" + data)


def _global(out, module, name):
    out.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
