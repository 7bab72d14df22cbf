"""float32 products by oneDNN's sgemm, in Paddle's wheel that of MKL: gradients of weights, and of few channels.

oneDNN's primitives take 1.04 to 1.7 times as long for the columns of two matrices, 1.0 to 1.2 times for a small right
factor; for others they are as fast.
"""

import functools
import math

from . import onednn_library as onednn
from .compiled import Primitive, formats
from .compiled_library import load


def is_sgemm(left, right, bias, out, post_ops):
    """Return whether the product of a key is one of these: left [M, K], plain or transposed, right [K, N]; none without
    the compiled kernels, where oneDNN's own primitives need what they need: a packed right factor."""
    if not formats() or out.data_type != onednn.FLOAT32 or bias is not None or post_ops or len(out.shape) != 2:
        return False
    if left.data_type != out.data_type or right.strides is None or not _has_rows(right) or not _has_rows(out):
        return False
    if _has_rows(left):
        return left.shape[0] >= 64 and math.prod(right.shape) <= 1 << 16
    is_transposed = left.strides[0] == 1 and left.strides[1] >= left.shape[0]
    return is_transposed and right.shape[0] >= 64 and math.prod(out.shape) <= 1 << 20


def _has_rows(layout):
    return layout.strides[1] == 1 and layout.strides[0] >= layout.shape[1]


def sgemm(left, right, bias, out, post_ops):
    """The primitive of such a key."""
    transposed = not _has_rows(left)
    steps = left.strides[transposed], right.strides[0], out.strides[0]
    address = onednn.load().address("sgemm")
    return Primitive(functools.partial(load().sgemm, address, transposed, *out.shape, right.shape[0], *steps), 3)
