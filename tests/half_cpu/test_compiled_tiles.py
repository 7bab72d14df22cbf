"""Products of large bfloat16 matrices by AMX: compared with float64, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, compiled_tiles, onednn_matmul
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_convolution_products import PIXELS, is_product
from image_classification.half_cpu.onednn_primitives import Layout
from image_classification.layers import linear_gelu
from tests.helpers.onednn_runs import BFLOAT16, ROUNDING, by_threads, run, tensors

library = compiled_library.load()
needs_tiles = pytest.mark.skipif(not compiled_tiles.has_tiles(), reason="needs AMX")
GELU = (("eltwise", onednn.GELU_ERF, 0.0, 0.0),)
EPSILON = ROUNDING[BFLOAT16]


def factor(rows, columns, transposed, seed=0):
    """Return a matrix in memory, by rows or columns, its strides and its values in float64; NaN between and behind."""
    outer, inner = (columns, rows) if transposed else (rows, columns)
    values = np.full([outer + 1, inner + 3], np.nan, "float32")
    values[:outer, :inner] = np.random.default_rng(rows + columns + seed).standard_normal([outer, inner])
    tensor = paddle.to_tensor(values).astype(BFLOAT16)
    exact = tensor.astype("float64").numpy()[:outer, :inner]
    strides = (1, inner + 3) if transposed else (inner + 3, 1)
    return tensor, strides, exact.T if transposed else exact


def product(sizes, left, right, out_dtype=BFLOAT16, bias=None, gelu=False, scale=1.0):
    """Return left @ right as the kernel writes it to rows with a gap, and what it leaves between them."""
    rows, columns, terms = sizes
    out = paddle.full([rows, columns + 5], 7, out_dtype)
    constants = compiled_library.numbers(1, 1, rows, columns, terms)
    strides = compiled_library.numbers(0, 0, *left[1], 0, 0, *right[1], 0, 0, columns + 5, 1)
    out_format = onednn.BFLOAT16 if out_dtype == BFLOAT16 else onednn.FLOAT32
    pointers = left[0].data_ptr(), right[0].data_ptr(), out.data_ptr()
    bias = None if bias is None else bias.data_ptr()
    library.matmul(onednn.BFLOAT16, out_format, constants, strides, *pointers, scale, bias, None, gelu)
    values = out.astype("float64").numpy()
    return values[:, :columns], values[:, columns:]


def bound(left, right, exact, epsilon=EPSILON):
    """Half a unit in the last place; float32 sums lose at most 2^-24 of the absolute sum for each term, and as a walk
    of random steps the root of their number."""
    sums = np.abs(left) @ np.abs(right) * 2.0**-24 * np.sqrt(left.shape[1])
    return epsilon / 2 * np.abs(exact) + sums


# rows, columns, terms: whole panels; one number more or less; one and several parts of a panel in the cache; more rows
# than a span; more terms than are summed at once, in sums that wait, and in few sums, which are parts of sums first.
SIZES = [
    (32, 32, 32), (64, 96, 64), (33, 33, 33), (95, 63, 65), (300, 130, 700), (2081, 40, 96), (64, 1300, 1601),
    (520, 545, 4200), (40, 70, 9001),
]  # fmt: skip
ORDERS = [(False, False), (False, True), (True, False), (True, True)]


@needs_tiles
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_product_of_matrices_in_any_order_is_the_exact_one_rounded_once(sizes, orders):
    rows, columns, terms = sizes
    left, right = factor(rows, terms, orders[0]), factor(terms, columns, orders[1])
    exact = left[2] @ right[2]
    found, between = product(sizes, left, right)
    assert (np.abs(found - exact) <= bound(left[2], right[2], exact)).all()
    assert (between == 7).all()


@needs_tiles
@pytest.mark.parametrize("sizes", [(70, 50, 400), (64, 64, 5000)], ids=str)
def test_product_with_scale_bias_and_gelu_in_float32_is_the_exact_one(sizes):
    rows, columns, terms = sizes
    left, right = factor(rows, terms, False), factor(terms, columns, False)
    bias = paddle.linspace(-1, 1, columns)
    x = left[2] @ right[2] * 0.125 + bias.astype("float64").numpy()
    exact = F.gelu(paddle.to_tensor(x)).numpy()
    found, _ = product(sizes, left, right, "float32", bias, True, 0.125)
    # GELU's slope is at most 1.13, and its own error 4 units in the last place of what it is of (docs/half_cpu.md).
    assert (np.abs(found - exact) <= 1.13 * bound(left[2], right[2], x, 2.0**-20) + 2.0**-21).all()


@needs_tiles
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_numbers_that_are_not_finite_stay_in_their_rows_and_columns(orders):
    rows, columns, terms = sizes = 70, 40, 450
    left, right = np.ones([rows, terms], "float32"), np.ones([terms, columns], "float32")
    left[7, 449], left[60, 17], right[449, 33] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        exact = left.astype("float64") @ right.astype("float64")
    factors = []
    for values, transposed in zip((left, right), orders, strict=True):
        lies = np.ascontiguousarray(values.T if transposed else values)
        strides = (1, lies.shape[1]) if transposed else (lies.shape[1], 1)
        factors.append((paddle.to_tensor(lies).astype(BFLOAT16), strides))
    found, _ = product(sizes, *factors)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    rounded = paddle.to_tensor(exact).astype(BFLOAT16).astype("float64").numpy()
    np.testing.assert_array_equal(found[np.isfinite(exact)], rounded[np.isfinite(exact)])


@needs_tiles
@pytest.mark.parametrize("sizes", [(700, 520, 600), (300, 64, 9000), (560, 512, 4500), (2304, 544, 4100)], ids=str)
def test_product_on_other_numbers_of_threads_is_the_same_bit_for_bit(sizes):
    rows, columns, terms = sizes
    left, right = factor(rows, terms, False), factor(terms, columns, False)
    one, two, five = by_threads((1, 2, 5), lambda: product(sizes, left, right)[0])
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, five)


@needs_tiles
def test_rows_of_a_product_do_not_depend_on_how_many_there_are():
    left, right = factor(900, 448, False), factor(448, 96, True)
    whole, _ = product((900, 96, 448), left, right)
    part, _ = product((300, 96, 448), left, right)
    np.testing.assert_array_equal(part, whole[:300])


@needs_tiles
@pytest.mark.parametrize(
    "operator, shapes, rows",
    [
        (F.linear, [(2, 300, 512), (512, 576)], 600),
        (F.linear, [(2, 300, 512), (512, 576), (576,)], 600),
        (F.conv2d, [(2, 512, 14, 15), (576, 512, 1, 1)], 420),
    ],
    ids=["linear", "linear-bias", "single-pixels"],
)
def test_operator_and_its_gradients_are_the_references(operator, shapes, rows, monkeypatch):
    calls = count_calls(monkeypatch)
    inputs = tensors(shapes, scale=0.2)
    out, gradients = run(operator, inputs, "onednn")
    expected, references = run(operator, inputs, "reference")
    weight = (512, 576, rows) if operator is F.linear else (576, 512, rows)
    assert calls == [(rows, 576, 512), (rows, 512, 576), weight]
    for found, reference in zip([out, *gradients], [expected, *references], strict=True):
        assert_like(found, reference)


@needs_tiles
def test_linear_layer_with_gelu_is_the_exact_one_rounded_once(monkeypatch):
    calls = count_calls(monkeypatch)
    layer, x = paddle.nn.Linear(512, 64).to(dtype=BFLOAT16), paddle.randn([300, 512]).astype(BFLOAT16)
    with paddle.no_grad(), half_cpu.dispatch(backend="onednn"):
        found = linear_gelu(layer, x).astype("float64").numpy()
    assert calls == [(300, 64, 512)]
    left, right, bias = (each.astype("float64") for each in (x, layer.weight, layer.bias))
    exact = F.gelu(left @ right + bias).numpy()
    # GELU's slope is at most 1.13.
    assert (np.abs(found - exact) <= 1.13 * bound(left.numpy(), right.numpy(), exact)).all()


def test_products_that_are_chosen(monkeypatch):
    """What was measured: [rows, terms] x [terms, columns], and with columns of the left factor side by side."""
    monkeypatch.setattr(compiled_tiles, "has_tiles", lambda: True)

    def chosen(rows, columns, terms, along=True, dtype=onednn.BFLOAT16, bias=None, post_ops=(), step=1):
        left = Layout(dtype, (rows, terms), (terms, 1) if along else (1, rows))
        right, out = (
            Layout(dtype, (terms, columns), (columns, 1)),
            Layout(dtype, (rows, columns), (columns * step, step)),
        )
        return compiled_tiles.is_tiles(left, right, bias, out, post_ops)

    assert chosen(1576, 3072, 768) and chosen(1576, 768, 3072, post_ops=GELU) and chosen(256, 32, 128)
    assert chosen(256, 32, 330) and not chosen(6272, 64, 144) and not chosen(6272, 64, 96)
    assert chosen(768, 3072, 1576, along=False) and chosen(512, 512, 64, along=False)
    assert not chosen(1576, 3072, 768, dtype=onednn.FLOAT16) and not chosen(1576, 3072, 768, step=2)
    assert not chosen(255, 3072, 768) and not chosen(6272, 31, 768) and not chosen(25088, 256, 64)
    assert not chosen(256, 3072, 6272, along=False) and not chosen(768, 768, 32, along=False)
    assert not chosen(1576, 768, 3072, post_ops=(("sum", 1.0),))
    assert not chosen(1576, 64, 768, bias=Layout(onednn.FLOAT32, (1, 64), (64, 1)))
    monkeypatch.setattr(compiled_tiles, "has_tiles", lambda: False)
    assert not chosen(1576, 3072, 768)


def test_convolutions_that_are_chosen(monkeypatch):
    monkeypatch.setattr(compiled_tiles, "has_tiles", lambda: True)

    def chosen(name, inputs, outputs, size, post_ops=()):
        images = [Layout(onednn.BFLOAT16, (8, channels, size, size), None) for channels in (inputs, outputs)]
        filters = Layout(onednn.BFLOAT16, (outputs, inputs, 1, 1), (inputs, 1, 1, 1))
        return is_product(False, name, images[0], filters, images[1], PIXELS, post_ops)

    assert (
        chosen("forward", 512, 64, 14)
        and not chosen("forward", 64, 512, 14)
        and not chosen("forward", 512, 64, 14, GELU)
    )
    assert chosen("backward_data", 64, 512, 14) and not chosen("backward_data", 512, 64, 56)


def assert_like(found, expected):
    """Both rounded once from float32 sums in another order: a unit in the last place, or of what they cancel from."""
    found, expected = (each.astype("float64").numpy() for each in (found, expected))
    assert (np.abs(found - expected) <= EPSILON * np.maximum(np.abs(expected), 0.05 * np.abs(expected).max())).all()


def count_calls(monkeypatch):
    """Return the list that gets (rows, columns, terms) of each product that is built anew."""
    calls = []

    def is_tiles(left, right, bias, out, post_ops):
        chosen = compiled_tiles.is_tiles(left, right, bias, out, post_ops)
        key = (*out.shape, left.shape[1])
        if chosen and key not in calls:
            calls.append(key)
        return chosen

    monkeypatch.setattr(onednn_matmul, "is_tiles", is_tiles)
    monkeypatch.setattr(onednn_matmul, "cache", onednn_matmul.cache.__class__())
    onednn_matmul._prepared.cache_clear()
    return calls
