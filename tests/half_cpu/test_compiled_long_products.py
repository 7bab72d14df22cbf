"""Products of the columns of two matrices of many rows: compared with float64, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, compiled_long_products, onednn_matmul
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_memory import new_channels_last
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.onednn_runs import BFLOAT16, FLOAT16, FLOAT32, ROUNDING, by_threads, needs_onednn, run, tensors

library = compiled_library.load()
has_amx = library is not None and library.has_amx
has_avx512 = library is not None and library.instruction_set == "avx512"
by_pairs = compiled_long_products.multiplies_bfloat16()
pytestmark = [needs_onednn, pytest.mark.skipif(library is None, reason="needs a C++ compiler")]
HALVES = [FLOAT16, BFLOAT16]
NUMBERS = {FLOAT16: onednn.FLOAT16, BFLOAT16: onednn.BFLOAT16, FLOAT32: onednn.FLOAT32}
EPSILON = ROUNDING | {FLOAT32: 2.0**-23}


def factor(rows, columns, step, dtype):
    """Return a tensor [rows, columns] within rows of `step`, what lies between NaN, and its values in float64."""
    values = np.full([rows, step], np.nan, "float32")
    values[:, :columns] = np.random.default_rng(rows + columns).standard_normal([rows, columns])
    tensor = paddle.to_tensor(values).astype(dtype)
    return tensor, tensor.astype("float64").numpy()[:, :columns]


def product(left, right, rows, columns, right_columns, step=None):
    """Return left^T right as the kernel writes it to rows of `step`, and what it leaves between them."""
    step = step or right_columns
    out = paddle.full([columns, step], 7, left.dtype)
    sizes = NUMBERS[left.dtype.name.lower()], rows, columns, right_columns, left.shape[1], right.shape[1], step
    library.long_product(*sizes, left.data_ptr(), right.data_ptr(), out.data_ptr())
    values = out.astype("float64").numpy()
    return values[:, :right_columns], values[:, right_columns:]


# rows, columns, right columns
SIZES = [
    (1, 1, 1), (2, 32, 32), (3, 31, 33), (127, 40, 100), (513, 96, 47), (1031, 33, 96), (1500, 384, 390),
    (2049, 600, 65), (4100, 64, 33), (9001, 41, 34), (100, 3, 256), (3100, 270, 125), (191, 130, 1), (400, 1, 40),
    (600, 840, 70),
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_product_of_columns_is_the_exact_one_rounded_once(sizes, dtype):
    rows, columns, right_columns = sizes
    left, exact_left = factor(rows, columns, columns + 5, dtype)
    right, exact_right = factor(rows, right_columns, right_columns + 3, dtype)
    found, between = product(left, right, *sizes, step=right_columns + 2)
    exact = exact_left.T @ exact_right
    # Half a unit in the last place; float32 sums lose at most 2^-24 of the absolute sum for each of their terms, and as
    # a walk of random steps the root of their number.
    sums = np.abs(exact_left).T @ np.abs(exact_right) * 2.0**-24 * np.sqrt(rows)
    assert (np.abs(found - exact) <= EPSILON[dtype] / 2 * np.abs(exact) + sums).all()
    assert (between == 7).all()


@pytest.mark.skipif(not has_amx, reason="needs AMX")
def test_product_by_amx_is_the_exact_one_rounded_once():
    test_product_of_columns_is_the_exact_one_rounded_once((1031, 33, 96), BFLOAT16)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_product_of_numbers_that_are_not_finite_has_them_in_their_rows_and_columns_alone(dtype):
    rows, columns, right_columns = 5000, 70, 40
    left, right = np.ones([rows, columns], "float32"), np.ones([rows, right_columns], "float32")
    left[4321, 7], left[17, 60], right[4999, 33] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        exact = left.T.astype("float64") @ right.astype("float64")
    factors = (paddle.to_tensor(each).astype(dtype) for each in (left, right))
    found, _ = product(*factors, rows, columns, right_columns)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    rounded = paddle.to_tensor(exact).astype(dtype).astype("float64").numpy()
    np.testing.assert_array_equal(found[np.isfinite(exact)], rounded[np.isfinite(exact)])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("sizes", [(8200, 64, 96), (1300, 800, 700)], ids=str)
def test_product_on_other_numbers_of_threads_is_the_same_bit_for_bit(sizes, dtype):
    left, right = (factor(sizes[0], columns, columns, dtype)[0] for columns in sizes[1:])
    np.testing.assert_array_equal(*by_threads((1, 3), lambda: product(left, right, *sizes)[0]))


def by_columns(x, weight):
    """The gradient of a transposed weight is written by its columns: the factors change places."""
    return paddle.matmul(x, weight, transpose_y=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("function", "shapes", "sizes"), [
    (F.linear, [(2, 1025, 64), (64, 96)], (2050, 64, 96)),
    (F.linear, [(2, 1024, 96), (96, 40)], (2048, 96, 40)),
    (by_columns, [(2200, 40), (64, 40)], (2200, 64, 40)),
    (F.conv2d, [(8, 48, 17, 16), (33, 48, 1, 1)], (8 * 17 * 16, 33, 48)),
])  # fmt: skip
def test_gradient_of_weights_is_the_references(function, shapes, sizes, dtype, monkeypatch):
    calls, inputs = count_calls(monkeypatch), tensors(shapes, dtype)
    _, gradients = run(function, inputs, "onednn")
    _, expected = run(function, inputs, "reference")
    assert calls == built(dtype, sizes)
    assert_like(gradients[1], expected[1])


def built(dtype, sizes):
    """Return the products that are built for one of these sizes: AMX multiplies float16 otherwise."""
    return [] if dtype == FLOAT16 and has_amx else [sizes]


def count_calls(monkeypatch):
    """Return the list that gets (rows, columns, right columns) of each product that is built anew."""
    calls = []

    def long_product(left, right, bias, out, post_ops):
        calls.append((right.shape[0], *out.shape))
        return compiled_long_products.long_product(left, right, bias, out, post_ops)

    monkeypatch.setattr(onednn_matmul, "long_product", long_product)
    monkeypatch.setattr(onednn_matmul, "cache", onednn_matmul.cache.__class__())
    onednn_matmul._prepared.cache_clear()
    return calls


def assert_like(found, expected):
    """One rounding of the largest value: sums of a thousand terms in another order may round to the neighbour."""
    rounding = ROUNDING[found.dtype.name.lower()]
    found, expected = (each.astype("float64").numpy() for each in (found, expected))
    assert np.abs(found - expected).max() <= rounding * np.abs(expected).max()


def layouts(left, right, out, data_type=onednn.BFLOAT16):
    return (
        Layout(data_type, left, (1, left[0])),
        Layout(data_type, right, (right[1], 1)),
        Layout(data_type, out, (out[1], 1)),
    )


@pytest.mark.parametrize(
    ("rows", "columns", "right_columns", "data_type", "chosen"),
    [
        (2048, 64, 96, onednn.BFLOAT16, True),
        (2048, 64, 96, onednn.FLOAT16, not has_amx),
        (64, 128, 8192, onednn.FLOAT32, True),
        (64, 8192, 3, onednn.FLOAT32, True),
        (63, 128, 8192, onednn.FLOAT32, False),
        (64, 128, 8193, onednn.FLOAT32, False),
        (2048, 129, 129, onednn.FLOAT32, has_avx512),
        (64, 1024, 1024, onednn.FLOAT32, has_avx512),
        (64, 1025, 1024, onednn.FLOAT32, False),
        (127, 64, 96, onednn.BFLOAT16, False),
        (512, 64, 96, onednn.BFLOAT16, by_pairs),
        (511, 64, 96, onednn.BFLOAT16, has_amx),
        (2047, 64, 96, onednn.FLOAT16, False),
        (2048, 31, 96, onednn.BFLOAT16, not by_pairs),
        (2048, 16, 96, onednn.FLOAT16, True),
        (2048, 32, 96, onednn.FLOAT16, True),
        (2048, 33, 96, onednn.FLOAT16, not has_amx),
        (2048, 15, 96, onednn.FLOAT16, False),
        (2048, 256, 256, onednn.FLOAT16, not has_amx),
        (2048, 256, 257, onednn.FLOAT16, False),
        (2048, 1024, 1024, onednn.BFLOAT16, by_pairs),
        (2048, 4096, 4096, onednn.BFLOAT16, by_pairs),
    ],
)
def test_long_product_is_chosen_for_many_rows(rows, columns, right_columns, data_type, chosen):
    left, right, out = layouts((columns, rows), (rows, right_columns), (columns, right_columns), data_type)
    assert compiled_long_products.is_long(left, right, None, out, ()) is chosen
    assert not compiled_long_products.is_long(left, right, out, out, ())
    assert not compiled_long_products.is_long(left, right._replace(strides=None), None, out, ())
    by_columns = out._replace(strides=(1, columns))
    assert not compiled_long_products.is_long(left, right, None, by_columns, ())


def test_gradient_of_filters_of_images_that_lie_channels_last_reads_them_as_rows():
    images = new_channels_last(paddle.bfloat16, [2, 40, 24, 24])
    images.set_value(tensors([(2, 40, 24, 24)])[0])
    (filters,) = tensors([(64, 40, 1, 1)])
    filters.stop_gradient = False
    with half_cpu.dispatch():
        F.conv2d(images, filters).sum().backward()
    expected = images.astype("float64").numpy().sum(axis=(0, 2, 3))
    found = filters.grad.astype("float64").numpy()[:, :, 0, 0]
    # Each is the sum of 1152 numbers of size one, rounded once.
    assert np.abs(found - expected).max() <= ROUNDING[BFLOAT16] * np.abs(expected).max()
