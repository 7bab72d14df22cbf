"""What a reader found, in a form that can be compared."""

import hashlib

import numpy as np


def fingerprint(value):
    """Return a hash of arrays, bytes and plain values, however nested."""
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest, value):
    digest.update(type(value).__name__.encode())
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            _feed(digest, key)
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(digest, item)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, bytes | memoryview):
        digest.update(value)
    else:
        digest.update(repr(value).encode())
