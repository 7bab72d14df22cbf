"""Products of large bfloat16 matrices by AMX, packed to tiles first: linear layers, single pixels, gradients.

oneDNN's take 1.1 to 1.5 times as long: what it packs goes through memory, and both factors through the first cache.
"""

import functools

from . import onednn_library as onednn
from .compiled import formats
from .compiled_library import load

PANEL = 32  # columns of a right factor that lie together, and terms of a tile


def is_tiles(left, right, bias, out, post_ops):
    """Return whether the product of a key is one of these."""
    if len(out.shape) != 2 or bias is not None and bias.data_type != out.data_type or post_ops not in ((), _GELU):
        return False
    if out.strides[1] != 1 or 1 not in left.strides or 1 not in (right.strides or ()):
        return False
    rows, columns = out.shape
    return pays(left.data_type, left.strides[1] == 1, rows, columns, left.shape[1])


_GELU = (("eltwise", onednn.GELU_ERF, 0.0, 0.0),)


@functools.cache
def has_tiles():
    """Whether oneDNN multiplies bfloat16 by AMX, and so do the compiled kernels."""
    if not formats() or onednn.load() is None:
        return False
    return onednn.load().has(onednn.AMX_BF16) and load().has_amx


def pays(data_type, along, rows, columns, terms):
    """Return whether [rows, terms] times [terms, columns] is faster here than otherwise; `along`: whether a row's terms
    lie side by side.

    With fewer terms the time goes to results, with fewer rows to packing, which terms that fill no tiles need of both
    factors. Of gradients of few weights, whose terms are many, columns are turned round faster by `long_product`.
    """
    if data_type != onednn.BFLOAT16 or not has_tiles():
        return False
    if along:
        return columns >= PANEL and rows >= 256 and terms >= (320 if terms % PANEL else 128)
    return min(rows, columns) >= 512 and terms >= 64
