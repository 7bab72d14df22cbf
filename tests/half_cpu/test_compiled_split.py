"""float16 products by AMX: of every kind of number, compared with float64, and what no row may depend on."""

import math

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled, compiled_library
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.onednn_runs import by_threads

library = compiled_library.load()
pytestmark = pytest.mark.skipif(library is None or not library.has_amx, reason="needs a C++ compiler and AMX")

KINDS = ["rows", "left-columns", "right-columns", "gaps"]


def multiply(left, right, kind="rows", out_dtype="float32"):
    """Return the product of float16 matrices, which lie in memory row by row, column by column or with NaN between."""
    out = np.zeros((len(left), right.shape[1]), out_dtype)
    layouts, memory = [], []
    for values, columns in ((left, kind == "left-columns"), (right, kind == "right-columns"), (out, False)):
        if columns:
            values = np.asfortranarray(values)
        elif kind == "gaps" and values is not out:
            wide = np.full((2 * values.shape[0], 3 * values.shape[1]), np.nan, "float16")
            wide[::2, ::3] = values
            values = wide[::2, ::3]
        data_type = onednn.FLOAT16 if values.dtype == np.float16 else onednn.FLOAT32
        layouts.append(Layout(data_type, values.shape, tuple(step // values.itemsize for step in values.strides)))
        memory.append(values)
    compiled.matmul(layouts[0], layouts[1], None, layouts[2], ())(*(values.ctypes.data for values in memory))
    return memory[2]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float16")


def exactly(left, right):
    with np.errstate(invalid="ignore"):
        return left.astype("float64") @ right.astype("float64")


@pytest.mark.parametrize("kind", KINDS)
def test_product_of_two_numbers_is_exact_for_every_pattern(kind):
    """Subnormals, the largest numbers and all 11 bits: a product has 22 bits, and float32 24."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view("float16")
    patterns = patterns[np.isfinite(patterns)].reshape(-1, 64)  # 992 rows
    factors = np.random.default_rng(0).permutation(patterns.ravel())[:64]
    factors[:4] = 2.0**-24, 65504, -(2.0**-14) * (1 - 2.0**-10), 1 + 2.0**-10
    for some in (factors, patterns[40]):
        found = multiply(patterns, np.diag(some), kind)
        np.testing.assert_array_equal(found, patterns.astype("float32") * some.astype("float32"))


# rows, columns, terms: parts of tiles, more of each than is packed at a time, sums that wait for the next terms
SIZES = [
    (1, 1, 17), (16, 16, 32), (17, 33, 31), (32, 32, 192), (33, 65, 193), (5, 300, 401), (530, 40, 385), (20, 70, 9000),
    (600, 100, 5000), (3, 2, 20001),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product_of_any_size_is_the_exact_one_rounded_once(size, kind):
    rows, columns, terms = size
    left, right = draw(rows, terms), draw(terms, columns, seed=1)
    # float32 sums lose at most 2^-24 of the absolute sum for each of their terms, and as a walk of random steps the
    # root of their number.
    sums = exactly(np.abs(left), np.abs(right)) * 2.0**-24 * math.sqrt(terms)
    exact = exactly(left, right)
    assert (np.abs(multiply(left, right, kind) - exact) <= sums).all()
    found = multiply(left, right, kind, "float16").astype("float64")
    assert (np.abs(found - exact) <= 2.0**-11 * np.abs(exact) + sums + 2.0**-25).all()


def test_product_without_terms_is_zero():
    assert not multiply(draw(40, 0), draw(0, 50)).any()


def test_sums_beyond_the_format_become_inf_one_by_one():
    left, right = 300 * draw(70, 100), 100 * draw(100, 90, seed=1)
    found, wide = multiply(left, right, out_dtype="float16"), multiply(left, right)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, wide.astype("float16"))
    assert 0.1 < np.isinf(found).mean() < 0.99


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_where_it_is_in_exact_sums(value, side, kind):
    left, right = draw(75, 230), draw(230, 85, seed=1)
    whole = multiply(left, right, kind)
    for row, term in ((0, 229), (37, 0), (74, 100)):
        if side != "right":
            left[row, term] = value
        if side != "left":
            right[term, row] = value
    left[20] = right[:, 30] = 0  # times inf
    exact = exactly(left, right)
    found = multiply(left, right, kind)
    np.testing.assert_array_equal(found[~np.isfinite(exact)], exact[~np.isfinite(exact)])
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(exact))
    if side == "left":
        untouched = np.isfinite(exact).all(1)
        untouched[20], whole[:, 30] = False, 0
        assert untouched.sum() == 71
        np.testing.assert_array_equal(found[untouched], whole[untouched])


@pytest.mark.parametrize("kind", KINDS)
def test_inf_beside_nan_of_its_row_or_column_is_where_it_is_in_exact_sums(kind):
    """In one part of the terms that are packed together, and in two."""
    left, right = draw(40, 230), draw(230, 50, seed=1)
    left[5, [3, 4]], left[6, [3, 200]], left[7, [200, 3]] = [[np.inf, np.nan]] * 3
    right[[3, 4], 8] = right[[5, 210], 9] = np.inf, np.nan
    right[6, 10], right[7, 11] = np.nan, -np.inf
    exact, found = exactly(left, right), multiply(left, right, kind)
    np.testing.assert_array_equal(found[~np.isfinite(exact)], exact[~np.isfinite(exact)])
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(exact))


def test_product_that_is_added_to_its_result_is_added_once():
    """Rows that are computed again must not find what was added before."""
    left, right, out = draw(40, 64), draw(64, 48, seed=1), draw(40, 48, seed=2)
    left[7, 9] = np.inf
    right[9] = 1
    before = out.astype("float64")
    layouts = [Layout(onednn.FLOAT16, one.shape, (one.shape[1], 1)) for one in (left, right, out)]
    compiled.matmul(layouts[0], layouts[1], None, layouts[2], (("sum",),))(
        *(one.ctypes.data for one in (left, right, out))
    )
    exact = before + exactly(left, right)
    np.testing.assert_allclose(out, exact, rtol=2.0**-10, atol=2.0**-14)


def test_row_does_not_depend_on_the_number_of_rows():
    left, right = draw(700, 300), draw(300, 130, seed=1)
    whole = multiply(left, right)
    for rows in (5, 16, 40, 513):
        np.testing.assert_array_equal(multiply(left[:rows], right), whole[:rows])


def test_image_beside_one_that_is_not_finite_has_the_same_bits():
    """5 x 5 filters are computed as a product with gathered pixels."""
    paddle.seed(0)
    weight, images, gradient = paddle.randn([40, 24, 5, 5]), paddle.randn([3, 24, 9, 9]), paddle.randn([3, 40, 9, 9])
    found = []
    for value in (0.5, np.inf):
        images[1, 2, 3, 4] = gradient[1, 2, 3, 4] = value
        x = images.astype("float16")
        x.stop_gradient = False
        with half_cpu.dispatch():
            out = F.conv2d(x, weight.astype("float16"), padding=2)
        out.backward(gradient.astype("float16"))
        found.append([tensor.astype("float32").numpy() for tensor in (out, x.grad)])
    for finite, beside in zip(*found, strict=True):
        np.testing.assert_array_equal(beside[::2], finite[::2])
        assert 0.1 < np.isfinite(beside[1]).mean() < 0.9
        untouched = np.isfinite(beside[1]).all(0)
        np.testing.assert_array_equal(beside[1][:, untouched], finite[1][:, untouched])


def test_results_do_not_depend_on_the_number_of_threads():
    products = [(draw(rows, terms), draw(terms, columns, seed=1), kind)
                for rows, columns, terms in SIZES[-5:] for kind in KINDS[:3]]  # fmt: skip
    results = by_threads((1, 3), lambda: [multiply(*product) for product in products])
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)
