"""Faults that a run at the edges of memory must find; collected only where the file is named."""

import ctypes

import paddle
import pytest


@pytest.mark.parametrize("rows", [1, 65])
@pytest.mark.parametrize("edge", ["after", "before"])
def test_number_beyond_a_tensor_is_written(edge, rows):
    tensor = paddle.ones([rows, 64])
    place = rows * 64 * 4 if edge == "after" else -4
    ctypes.memset(tensor.data_ptr() + place, 0, 4)


def test_number_of_a_freed_tensor_is_read():
    tensor = paddle.ones([64, 64])
    pointer = tensor.data_ptr()
    del tensor
    ctypes.string_at(pointer, 4)


@pytest.mark.skipif(True, reason="no processor has it")
def test_freed_tensor_of_another_processor_is_skipped():
    raise AssertionError
