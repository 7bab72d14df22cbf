"""Weight files to arrays: safetensors, PyTorch (zip and legacy), Paddle's and our own pickles, told apart by content.

Arrays are views into the mapped file where the format allows it, so reading costs no memory of its own. bfloat16 comes
as float32, which holds each of its values exactly.
"""

import mmap
import pickle
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files.constructors import TorchTensor, brief
from ..files.pickle_file import read_pickle
from ..files.plain import open_plain, unreadable
from ..runtime import UserError, get_logger
from .safetensors import read_safetensors
from .torch_file import LEGACY_MAGIC, ZIP_MAGIC, read_legacy, read_zip

# Where a training state keeps the model; the average is what its authors evaluate.
AVERAGES = ("ema", "model_ema", "state_dict_ema")
WRAPPERS = (*AVERAGES, "model", "state_dict", "model_state_dict")  # the last as PyTorch's tutorials have it
MOST_NAMED = 4  # keys of a file that holds no tensors
AROUND = re.compile(r"^(module\.|_orig_mod\.)+")  # what PyTorch's parallel and compiled modules put before a name


class WeightFile(NamedTuple):
    """The tensors of a file by name; `layout` is "torch" (a linear weight is [out, in]) or "paddle" ([in, out]).

    `config` is the text of the configuration, or of a part of it, in a file of this project, else None.
    """

    tensors: dict
    layout: str
    kind: str
    config: str | None = None


def read_weights(path):
    """Return the :class:`WeightFile` of a file.

    Raises:
        UserError: no known format, cut, damaged, or asking for anything but tensors.
    """
    path = Path(path)
    try:
        with open_plain(path) as file:
            return _read(path, file)
    except OSError as error:
        raise unreadable(path, error) from None


def _read(path, file):
    start = file.read(16)
    content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if start else b""
    if start.startswith(ZIP_MAGIC):
        return _finish(path, *_of_torch(path, read_zip(path, file, content)), "torch", "PyTorch zip")
    if start.startswith(LEGACY_MAGIC):
        return _finish(path, *_of_torch(path, read_legacy(path, file, content)), "torch", "PyTorch legacy")
    if len(start) > 8 and start[8:9] == b"{":
        tensors, config = read_safetensors(path, content)
        return _finish(path, _unwrapped(path, tensors), (), "torch", "safetensors")._replace(config=config)
    if start[:1] == pickle.PROTO:
        found = read_pickle(path)
        config = found.tree.get("config") if isinstance(found.tree, dict) else None
        file = _finish(path, _named(path, found.tree, np.ndarray), found.left_out, "paddle", "Paddle pickle")
        return file._replace(config=config if isinstance(config, str) else None)
    hint = "; it is a web page, not weights" if start.lstrip()[:1] == b"<" else ""
    hint = "; it is a pointer: git lfs pull fetches the file" if start == b"version https://" else hint
    raise UserError(f"{path}: no weight file: expected safetensors, PyTorch .pth or Paddle .pdparams{hint}")


def _finish(path, tensors, left_out, layout, kind):
    if not tensors:
        raise UserError(f"{path}: holds no tensors by name")
    for name in tensors:
        if not name.isprintable():
            raise UserError(f"{path}: refused: the name {brief(name)} of a tensor has control characters")
    if left_out:
        get_logger().info("%s: left out what is no weights: %s", path, ", ".join(left_out))
    return WeightFile(tensors, layout, kind)


def _of_torch(path, file):
    return file.arrays(_named(path, file.pickle.tree, TorchTensor)), file.pickle.left_out


def _named(path, tree, kind):
    """Return the values of a kind by name in a file's content, from within a training state if it is one."""
    if not isinstance(tree, dict):
        return {}
    for key in WRAPPERS:
        if isinstance(tree.get(key), dict) and tree[key]:  # an average may not have begun
            if key in AVERAGES:
                get_logger().info("%s: its averaged weights are taken: %s", path, key)
            return _named(path, tree[key], kind)
    values = {name: value[1] if type(value) in (tuple, list) and len(value) == 2 else value  # paddle.save's own name
              for name, value in tree.items() if isinstance(name, str)}  # fmt: skip
    tensors = _unwrapped(path, {name: value for name, value in values.items() if type(value) is kind})
    try:
        _join_pieces(tensors, tree.get("UnpackBigParamInfor@@") or {})
    except (LookupError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: is damaged: its list of divided arrays fits none") from None
    if tree and not tensors:
        keys = ", ".join(brief(key) for key in list(tree)[:MOST_NAMED])
        raise UserError(f"{path}: holds no tensors by name, but {keys}: weights are what it has, or has under one of "
                        f"{', '.join(WRAPPERS)}")  # fmt: skip
    return tensors


def _unwrapped(path, tensors):
    """Return the tensors by the names that they have within the modules put around their model."""
    plain = {}
    for name, value in tensors.items():
        short = AROUND.sub("", name)
        if short in plain:
            raise UserError(f"{path}: refused: it holds two tensors of the name {brief(short)}")
        plain[short] = value
    return plain


def _join_pieces(tensors, pieces):
    """Join the arrays of 2^30 elements and more that paddle.save divides in protocols 2 and 3."""
    for name, info in pieces.items():
        parts = [tensors.pop(part) for part in info["slices"]]
        tensors[name] = np.concatenate(parts).reshape(tuple(info["OriginShape"]))
