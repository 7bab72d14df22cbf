"""The C++ kernels of the folder `cpp`, loaded and bound.

Without a compiler, a writable cache folder or a processor with AVX2 and F16C there are none; `backend_name` says so.
"""

import ctypes
import functools
import logging
import subprocess
from ctypes import c_char_p, c_double, c_float, c_int, c_long, c_uint, c_void_p

from . import compiler
from .scope import active

logger = logging.getLogger(__name__)

_I, _L, _F, _D, _S, _P = c_int, c_long, c_float, c_double, c_char_p, c_void_p
_SIGNATURES = {
    "convert": (_I, _I, _L, _P, _P),
    "move": (_I, _I, _I, _P, _P, _P),
    "widen": (_I, _I, _I, _P, _P, _P),
    "windows": (_P, _I, _P, _P),
    "join_rows": (_L, _I, _P, _L, _P, _P, _I),
    "activation": (_S, _I, _L, _F, _F, _P, _P),
    "activation_backward": (_S, _I, _L, _F, _F, _P, _P, _P),
    "pair": (_S, _I, _P, _P, _P, _P, _P),
    "slope": (_S, _I, _I, _P, _P, _P, _P, _P, _P),
    "pick": (_L, _P, _P, _P, _L, _P, _L, _P, _P),
    "take_rows": (_L, _L, _L, _L, _L, _P, _P, _P),
    "add_rows": (_I, _L, _L, _L, _L, _P, _P, _P),
    "take_along": (_L, _L, _L, _L, _L, _P, _P, _P),
    "add_along": (_I, _L, _L, _L, _L, _P, _P, _P),
    "extreme": (_I, _I, _L, _L, _L, _P, _P),
    "extreme_backward": (_I, _L, _L, _L, _P, _P, _P, _P),
    "place": (_I, _I, _L, _L, _L, _P, _P),
    "running_sum": (_I, _I, _L, _L, _L, _P, _P),
    "length": (_I, _L, _L, _L, _P, _P, _P),
    "length_backward": (_I, _L, _L, _L, _F, _P, _P, _P, _P),
    "unfold": (_I, _P, _P, _P),
    "fold": (_I, _P, _P, _P),
    "cross_entropy": (_I, _L, _L, _L, _P, _P, _P, _P, _P, _P),
    "cross_entropy_backward": (_I, _L, _L, _L, _P, _P, _P, _P, _P),
    "expand": (_I, _I, _P, _P, _F, _P, _P),
    "dropout": (_I, _L, _P, c_uint, _F, _P, _P, _P),
    "dropout_backward": (_I, _L, _F, _P, _P, _P),
    "scaled_sum": (_I, _I, _I, _L, _L, _L, _I, _L, _P, _P, _P, _P, _P),
    "scaled_sum_backward": (_I, _I, _L, _L, _L, _I, _P, _P, _P, _P, _P, _P, _P),
    "lamb_direction": (_L, _D, _D, _F, _F, _I, _P, _P, _P, _P, _P, _P, _P, _P),
    "square_sums": (_L, _P, _P),
    "adam": (_I, _I, _I, _L, _F, _F, _F, _F, _F, _P, _P, _P, _P, _P, _P, _P, _P),
    "momentum": (_I, _I, _I, _L, _F, _F, _F, _I, _P, _P, _P, _P, _P),
    "sgd": (_I, _I, _I, _L, _F, _P, _P, _P, _P),
    "lamb_descend": (_L, _F, _P, _P, _P, _P),
    "reduce": (_I, _I, _P, _P, _P, _P, _F, _P),
    "order": (_I, _I, _L, _L, _L, _L, _P, _P),
    "softmax": (_I, _L, _L, _P, _P),
    "softmax_backward": (_I, _L, _L, _P, _P, _P),
    "log_softmax": (_I, _L, _L, _P, _P),
    "log_softmax_backward": (_I, _L, _L, _P, _P, _P),
    "softmax_columns": (_I, _L, _L, _L, _P, _P),
    "softmax_columns_backward": (_I, _L, _L, _L, _P, _P, _P),
    "layer_norm": (_I, _I, _L, _L, _F, _P, _P, _P, _P, _P, _P, _P),
    "layer_norm_backward": (_I, _I, _L, _L, _F, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "residual_norm": (_I, _L, _L, _L, _F, *[_P] * 10),
    "residual_norm_backward": (_I, _L, _L, _L, _F, *[_P] * 14),
    "batch_norm": (_I, _L, _L, _L, _F, _I, _S, _P, _P, _P, _P, _P, _P, _P),
    "batch_norm_backward": (_I, _L, _L, _L, _F, _I, _S, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "move_statistics": (_L, _F, _F, _P, _P, _P, _P),
    "group_norm": (_I, _P, _F, _P, _P, _P, _P, _P, _P),
    "group_norm_backward": (_I, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "long_product": (_I, _L, _L, _L, _L, _L, _L, _P, _P, _P),
    "attention": (_I, _P, _F, _P, _P, _P, _P, _P, _P),
    "attention_backward": (_I, _P, _F, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "matmul": (_I, _I, _P, _P, _P, _P, _P, _F, _P, _P, _I),
    "convolution": (_I, _I, _P, _S, _P, _P, _P, _P, _P, _P),
    "tiled_convolution": (_P, _S, _P, _P, _P, _P, _P, _P),
    "tiled_filters": (_P, _P, _P),
    "dot_convolution": (_P, _F, _F, _P, _P, _P, _P, _P, _P),
    "dot_filters": (_L, _L, _P, _P),
    "window_gradient": (_I, _P, _P, _P, _P),
    "winograd": (_I, _I, _P, _S, _P, _P, _P, _P, _P, _P, _L),
    "winograd_filters": (_I, _I, _L, _L, _P, _P),
    "resample": (_I, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "grid_sample": (_I, _P, _I, _I, _P, _P, _P),
    "grid_sample_backward": (_I, _P, _I, _I, _P, _P, _P, _P, _P),
    "unit": (_I, _P, _P, _P, _P, _P),
    "unit_backward": (_I, _P, _P, _P, _P, _P, _P, _P),
    "rotary": (_I, _P, _I, _I, _P, _P, _P, _P),
    "pooling": (_I, _P, _I, _I, _P, _P, _P),
    "pooling_backward": (_I, _P, _I, _I, _P, _P, _P),
}

# The places of a result and of an operand that may lie in the same memory.
_REPLACED = {"dot_convolution": (5, 8), "tiled_convolution": (4, 7)}


class CompiledError(RuntimeError):
    """A compiled kernel was asked for what it does not know."""


def _check(status, function, arguments):
    if status:
        what = "unknown number format or operation, or an index that is no place of the tensor"
        raise CompiledError(f"{function.__name__}: {what}")
    if active.recorder is not None:
        places = [index for index, kind in enumerate(function.argtypes) if kind is _P]
        active.recorder.called(function, arguments, places)


class Library:
    """The loaded kernels, one method for each function of `cpp`.

    Attributes:
        instruction_set: "avx512" or "avx2", what they were compiled to.
        multiplies_bfloat16: whether they hold products by AVX512-BF16.
        has_amx: whether they may multiply bfloat16 matrices by AMX.
        is_intel: whether the processor is one of Intel's.
        halves_vectors: whether the processor computes vectors of 512 bits in two halves, as AMD Zen 4 does.
    """

    def __init__(self, path):
        dll = ctypes.CDLL(str(path))
        for name, argument_types in _SIGNATURES.items():
            function = getattr(dll, name)
            function.argtypes, function.restype, function.errcheck = argument_types, c_int, _check
            function.replaced = _REPLACED.get(name, ())
            setattr(self, name, function)
        self.execute = dll.execute  # the one that returns a status of oneDNN's
        self.execute.argtypes, self.execute.restype = (_P, _P, _P, _P, _I, _P, _I, _P), c_int
        self.play = dll.play  # a list of calls, see `call_list`
        self.play.argtypes, self.play.restype = (_P, _L, _L, _P), c_long
        self.instruction_set = {16: "avx512", 8: "avx2"}[dll.lanes()]
        self.multiplies_bfloat16 = bool(dll.multiplies_bfloat16())
        self.has_amx = bool(dll.has_amx())
        self.is_intel = bool(dll.is_intel())
        self.halves_vectors = bool(dll.halves_vectors())


def numbers(*values):
    """Return the numbers as an array that the kernels read."""
    return (c_long * len(values))(*values)


def addresses(*pointers):
    """Return the pointers as an array that the kernels read, and a recorder of their calls."""
    return (_P * len(pointers))(*pointers)


@functools.cache
def load():
    """Return the :class:`Library`, built if it has to be, or None where it cannot be."""
    try:
        return Library(compiler.build(compiler.cache_folder()))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        lines = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
        reason = next((line for line in lines if "error" in line.lower()), lines[0])  # behind those that say where
        logger.warning("half_cpu runs without its compiled kernels: %s", reason)
        return None
