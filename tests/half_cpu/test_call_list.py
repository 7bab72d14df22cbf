"""half_cpu.call_list: calls that C++ makes are those that Python would make, in their order."""

import ctypes
import functools

import numpy as np
import paddle
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import call_list, onednn_elementwise
from image_classification.half_cpu.call_list import CallList
from image_classification.half_cpu.compiled_library import CompiledError, load, numbers
from image_classification.half_cpu.onednn_library import FLOAT32, RELU
from image_classification.half_cpu.onednn_primitives import Primitive, cache, dense
from tests.helpers.onednn_runs import needs_onednn

pytestmark = [needs_onednn, pytest.mark.skipif(load() is None, reason="needs a compiler")]
BACKENDS = ["C++", "Python"]


@pytest.fixture(params=BACKENDS)
def made_by(request, monkeypatch):
    """Whose calls they are: without a compiler Python's."""
    if request.param == "Python":
        monkeypatch.setattr(call_list, "load", lambda: None)
    return request.param


def relu(count):
    """Return oneDNN's primitive of so many float32 numbers."""
    primitive = cache.get(onednn_elementwise._describe_activation, RELU, dense(paddle.float32, count))
    assert isinstance(primitive, Primitive)
    return primitive


def place(array):
    return array.ctypes.data


def test_calls_of_all_kinds_are_made_in_their_order(made_by):
    """x becomes x * 0.5 + 3 (floats), its positive part (oneDNN), twice that by Python, and a sum (arrays, bytes)."""
    library = load()
    x, y, z = (np.zeros(8, "float32") for _ in range(3))
    x[:] = np.arange(-8, 8, 2)
    calls = CallList([
        functools.partial(library.activation, b"scale", FLOAT32, 8, 0.5, 3.0, place(x), place(y)),
        functools.partial(relu(8), place(y), place(z)),
        functools.partial(lambda: z.__imul__(2)),
        functools.partial(library.pair, b"add", FLOAT32, numbers(1, 1, 1, 8), numbers(0, 0, 0, 1, 0, 0, 0, 1),
                          place(z), place(x), place(y)),
    ])  # fmt: skip
    calls.make(0, len(calls))
    np.testing.assert_array_equal(z, 2 * np.maximum(0, x * 0.5 + 3))
    np.testing.assert_array_equal(y, z + x)


@pytest.mark.parametrize("which", ["compiled", "oneDNN"])
def test_pointer_that_is_put_is_read_and_the_others_stay(which, made_by):
    x, other, y = np.ones(4, "float32"), np.full(4, 5, "float32"), np.zeros(4, "float32")
    call, argument = {
        "compiled": (functools.partial(load().activation, b"relu", FLOAT32, 4, 0.0, 0.0, place(x), place(y)), 5),
        "oneDNN": (functools.partial(relu(4), place(x), place(y)), 0),
    }[which]
    calls = CallList([call])
    calls.put(0, argument, place(other))
    calls.make(0, 1)
    assert y.tolist() == [5.0] * 4
    calls.put(0, argument, place(x))
    calls.make(0, 1)
    assert y.tolist() == [1.0] * 4


def test_one_primitive_in_two_places_has_the_pointers_of_each(made_by):
    arrays = [np.full(4, value, "float32") for value in (1, 0, 2, 0)]
    one, to_one, two, to_two = map(place, arrays)
    calls = CallList([functools.partial(relu(4), one, to_one), functools.partial(relu(4), two, to_two)])
    calls.make(0, 2)
    assert [array[0] for array in arrays] == [1, 1, 2, 2]


@pytest.mark.parametrize("count", [1, call_list._AT_ONCE, 3 * call_list._AT_ONCE + 5])
def test_part_of_many_calls_is_made_and_no_other(count, made_by):
    x, y = np.zeros(1, "float32"), np.zeros(1, "float32")
    step = [functools.partial(load().activation, b"scale", FLOAT32, 1, 1.0, 1.0, place(x), place(y)),
            functools.partial(load().activation, b"scale", FLOAT32, 1, 1.0, 1.0, place(y), place(x))]  # fmt: skip
    calls = CallList(step * (count + 2))
    calls.make(2, 2 + 2 * count)
    assert x[0] == 2 * count


def test_call_that_fails_says_so_and_the_next_ones_are_not_made(made_by):
    x, y = np.ones(4, "float32"), np.zeros(4, "float32")
    calls = CallList([
        functools.partial(load().activation, b"no such function", FLOAT32, 4, 0.0, 0.0, place(x), place(y)),
        functools.partial(load().activation, b"relu", FLOAT32, 4, 0.0, 0.0, place(x), place(y)),
    ])  # fmt: skip
    with pytest.raises(CompiledError, match="activation: unknown"):
        calls.make(0, 2)
    assert y.tolist() == [0.0] * 4


def test_every_function_fits_into_a_row():
    """As many integers and floating numbers as a row of the list has, on either side."""
    sizes = call_list._LISTS
    for name in half_cpu.compiled_library._SIGNATURES:
        kinds = getattr(load(), name).argtypes
        floating = sum(kind in (ctypes.c_float, ctypes.c_double) for kind in kinds)
        assert floating <= sizes["floats"] and len(kinds) - floating <= sizes["integers"], name
    assert ctypes.sizeof(call_list._Call) == 8 * (1 + sum(sizes.values()))


def test_primitives_of_other_threads_wait_while_a_list_is_played(monkeypatch):
    """oneDNN's memory objects, which a call points to its operands, belong to all threads."""
    locked, play = [], load().play
    x = np.ones(4, "float32")
    calls = CallList([functools.partial(relu(4), place(x), place(x))])
    lock = calls._calls[0].func.lock
    monkeypatch.setattr(load(), "play", lambda *args: (locked.append(lock.locked()), play(*args))[1])
    calls.make(0, 1)
    assert locked == [True] and not lock.locked()
