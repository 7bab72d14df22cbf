"""Products of the columns of two matrices of many rows: the gradients of weights."""

import functools

from . import onednn_library as onednn
from .compiled import Primitive, formats
from .compiled_library import load


@functools.cache
def multiplies_bfloat16():
    """Whether the processor has instructions for it, and oneDNN uses none that the kernel lacks."""
    if load() is None or not load().multiplies_bfloat16 or onednn.load() is None:
        return False
    return onednn.load().has(onednn.AVX512_BF16) and (load().has_amx or not onednn.load().has(onednn.AMX_BF16))


def pays(data_type, rows, columns, right_columns):
    """Return whether left^T right of [rows, columns] and [rows, right_columns] is faster here than otherwise.

    oneDNN's of bfloat16 copies both factors before it multiplies: of 512 rows or more it takes 1.02 to 1.15 times as
    long, of 128 columns up to 1.5 times; of fewer rows what waits for the last sums is more. With AMX, for which oneDNN
    turns the left factor round slowly, the kernel takes 0.55 to 0.9 of its time. Of formats that are widened the other
    kernel packs few columns as long as it multiplies them: 0.76 to 0.97, and of float16 by AMX, whose tiles 32 columns
    do not fill, 0.45 to 0.85. oneDNN's of float32 take 1.05 to 1.9 times as long for up to 128 columns; for more the
    kernel is faster in a model, whose caches hold other things, if with AVX-512.
    """
    fewest = min(columns, right_columns)
    if data_type == onednn.FLOAT32:
        most = 1024 if formats() and load().instruction_set == "avx512" else 128
        return bool(formats()) and fewest <= most and rows >= 64 and columns * right_columns <= 1 << 20
    if data_type in formats():
        most = 32 if data_type == onednn.FLOAT16 and load().has_amx else rows
        return 16 <= fewest <= most and rows >= 2048 and columns * right_columns <= 1 << 16
    if data_type != onednn.BFLOAT16 or fewest < 32 or not multiplies_bfloat16():
        return False
    return rows >= (128 if load().has_amx else 512)


def is_long(left, right, bias, out, post_ops):
    """Return whether the product of a key is one of these."""
    if bias is not None or post_ops or right.strides is None or len(out.shape) != 2:
        return False
    if left.strides[1] == 1 or not left.strides[0] == right.strides[1] == out.strides[1] == 1:
        return False
    return out.data_type == left.data_type and pays(left.data_type, right.shape[0], *out.shape)


def long_product(left, right, bias, out, post_ops):
    """The primitive of such a key."""
    steps = left.strides[1], right.strides[0], out.strides[0]
    return Primitive(functools.partial(load().long_product, out.data_type, right.shape[0], *out.shape, *steps))
