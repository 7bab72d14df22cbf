"""Pickles of arrays, numbers, text, lists and dicts, and nothing else: a data set must not be able to run code."""

import codecs
import pickle

import numpy as np

_PLAIN_DTYPES = "biufSU?"


def _empty_array(subtype, shape, kind):
    """Stand in for NumPy's _reconstruct: an array whose content the pickle sets afterwards."""
    if subtype is not np.ndarray or kind not in (b"b", "b"):
        raise pickle.UnpicklingError("an array subclass")
    return np.ndarray(shape, "b")


def _plain_dtype(name, *flags):
    """Stand in for numpy.dtype: no objects, no records."""
    name = name.decode("ascii") if isinstance(name, bytes) else name
    kind = np.dtype(name)
    if kind.kind not in _PLAIN_DTYPES:
        raise pickle.UnpicklingError(f"the dtype {name!r}")
    return kind


def _encode(text, encoding):
    """Stand in for _codecs.encode, by which Python 3 writes bytes in protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r}")
    return codecs.encode(text, "latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _plain_dtype,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}, which is not allowed in a data file") from None


def load_arrays(file):
    """Return what a pickle holds, text of Python 2 as bytes.

    Raises:
        pickle.UnpicklingError: it is cut, no pickle, or asks for anything but plain arrays.
    """
    try:
        return _ArrayUnpickler(file, encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a hostile or cut pickle can raise nearly anything
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
