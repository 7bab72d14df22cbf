"""Operators that move, compare and sum: the bits of the reference, special numbers included, and its gradients."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_concat, compiled_worth
from tests.helpers.onednn_runs import ALL, FLOAT32, HALVES, Calls, assert_within_one_rounding, needs_onednn, tensors
from tests.helpers.operator_cases import EXACT, ROUNDED

pytestmark = needs_onednn


@pytest.fixture(autouse=True)
def no_tensor_is_too_small(monkeypatch):
    for module in (compiled_worth, compiled_concat):
        monkeypatch.setattr(module, "LARGE", 1)


def runs(case, monkeypatch, inputs):
    """Return (result, gradients) of the reference and of the kernel, with the same gradient of the result."""
    name, function, _ = case
    calls, results = Calls(monkeypatch, name), []
    for backend in ("reference", "counted"):
        leaves = [tensor.detach().clone() for tensor in inputs]
        for leaf in leaves:
            leaf.stop_gradient = False
        with half_cpu.dispatch(backend=backend):
            result = function(*leaves)
        if not result.stop_gradient:
            (gradient,) = tensors([result.shape], str(result.dtype).removeprefix("paddle."), seed=7)
            paddle.autograd.backward([result], [gradient.detach()])
        results.append((result, [leaf.grad for leaf in leaves]))
    in_float32 = str(inputs[0].dtype) == "paddle.float32"
    assert calls.served or (in_float32 and name in ("gather", "index_select", "embedding"))
    return results


def rounded_to_halves(shapes, dtype):
    """Return tensors many of whose elements are equal."""
    return [(tensor.astype(FLOAT32) * 2).round().astype(dtype) / 2 for tensor in tensors(shapes, dtype)]


def with_special_numbers(inputs):
    """Return the tensors with NaN, both infinities and negative zero in a few places."""
    result = []
    for tensor in inputs:
        values = tensor.astype(FLOAT32).numpy().copy()
        for seed, number in enumerate((np.nan, np.inf, -np.inf, -0.0)):
            places = np.random.default_rng(seed).integers(0, values.size, 1 + values.size // 40)
            values.reshape(-1)[places] = number
        result.append(paddle.to_tensor(values).astype(tensor.dtype))
    return result


def assert_same(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    np.testing.assert_array_equal(actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy())


@pytest.mark.parametrize("special", [False, True], ids=["ordinary", "special"])
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", EXACT)
def test_operator_that_rounds_nothing_has_the_references_bits(case, dtype, special, monkeypatch):
    inputs = rounded_to_halves(EXACT[case][2], dtype)
    inputs = with_special_numbers(inputs) if special else inputs
    (expected, expected_gradients), (actual, gradients) = runs(EXACT[case], monkeypatch, inputs)
    assert_same(actual, expected)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        if wanted is None or special:
            assert (gradient is None) == (wanted is None)
        elif dtype == FLOAT32:  # sums of up to 15 numbers in another order
            np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), rtol=0, atol=1e-5 * float(wanted.abs().max()))
        else:
            assert_within_one_rounding(gradient, wanted)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", ROUNDED)
def test_operator_rounds_once(case, dtype, monkeypatch):
    inputs = tensors(ROUNDED[case][2], dtype)
    (expected, expected_gradients), (actual, gradients) = runs(ROUNDED[case], monkeypatch, inputs)
    chains = ("cross_entropy-far", "sin", "cos", "log", "pow-quarters", "mean-of-all")
    further = int(case in chains)  # a neighbour of what one operator rounds is the input of the next
    for one, wanted in zip([actual, *gradients], [expected, *expected_gradients], strict=True):
        if dtype == FLOAT32:
            np.testing.assert_allclose(one.numpy(), wanted.numpy(), rtol=0, atol=1e-5 * float(wanted.abs().max()))
        else:
            assert_within_one_rounding(one, wanted, further)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", ROUNDED)
def test_operator_hides_no_special_number(case, dtype, monkeypatch):
    """Paddle's cross-entropy and its power return finite numbers for rows with NaN and for infinite numbers."""
    inputs = with_special_numbers(tensors(ROUNDED[case][2], dtype))
    (expected, _), (actual, _) = runs(ROUNDED[case], monkeypatch, inputs)
    actual, expected = actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy()
    assert (np.isfinite(actual) <= np.isfinite(expected)).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("function", "given", "result", "gradient"), [
    (F.celu, np.inf, np.inf, 1), (F.gelu, np.inf, np.inf, 1), (F.mish, np.inf, np.inf, 1),
    (F.hardswish, np.inf, np.inf, 1), (F.hardswish, np.nan, np.nan, 1), (paddle.abs, -np.inf, np.inf, -1),
    (paddle.abs, np.nan, np.nan, 0), (F.log_sigmoid, -np.inf, -np.inf, 1), (paddle.sqrt, np.inf, np.inf, 0),
    (F.selu, np.nan, np.nan, np.nan), (F.silu, np.inf, np.inf, np.nan), (F.leaky_relu, np.nan, np.nan, 1),
    (lambda x: x.clip(-1, 1), np.nan, np.nan, 1),
])  # fmt: skip
def test_gradient_at_what_is_not_finite_is_as_the_docs_have_it(function, given, result, gradient, dtype):
    x = paddle.full([20], given).astype(dtype)
    x.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        y = function(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.astype(FLOAT32).numpy(), np.full(20, result, "float32"))
    np.testing.assert_array_equal(x.grad.astype(FLOAT32).numpy(), np.full(20, gradient, "float32"))


@pytest.mark.parametrize("function", ["sin", "cos", "log"])
def test_float32_function_of_any_size_is_exact_to_float32(function):
    values = np.concatenate([np.logspace(-44, 38, 5000), -np.logspace(-44, 38, 5000), np.linspace(0.5, 2, 5000)])
    values = values.astype("float32")
    with half_cpu.dispatch(backend="onednn"), np.errstate(invalid="ignore"):
        actual = getattr(paddle, function)(paddle.to_tensor(values)).numpy()
        exact = getattr(np, function)(values.astype("float64"))
    # two units in the last place; of sines beside their zeros, 2^-23 of one
    np.testing.assert_allclose(actual, exact, rtol=2.0**-22, atol=2.0**-23 if function != "log" else 0)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradient_of_equal_extremes_is_shared(dtype):
    x = paddle.to_tensor([[1.0, 3.0, 3.0, 3.0, 2.0]]).astype(dtype)
    y = paddle.to_tensor([[1.0, 3.0, 4.0, 2.0, 2.0]]).astype(dtype)
    x.stop_gradient = y.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        (x.max(1).sum() * 3 + paddle.maximum(x, y).sum()).backward()
    assert x.grad.astype(FLOAT32).tolist() == [[0.5, 1.5, 1.0, 2.0, 0.5]]
    assert y.grad.astype(FLOAT32).tolist() == [[0.5, 0.5, 1.0, 0.0, 0.5]]


@pytest.mark.parametrize("dtype", HALVES)
def test_sum_of_many_gradients_is_float32_until_the_end(dtype):
    """4096 ones that come back to one place: in bfloat16 they would add up to 256."""
    table = paddle.ones([2, 20]).astype(dtype)
    table.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        rows = F.embedding(paddle.zeros([4096], "int64"), table)
        elements = paddle.take_along_axis(table, paddle.zeros([4096, 20], "int64"), 0)
        repeated = table[:1].expand([4096, 20])
    for part in (rows, elements, repeated):
        table.clear_gradient(False)
        part.sum().backward()
        assert table.grad.astype(FLOAT32)[0].tolist() == [4096.0] * 20


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: paddle.gather(x, paddle.to_tensor([7]), axis=1), IndexError),
        (lambda x: x.index_select(paddle.to_tensor([7]), 1), ValueError),
        (lambda x: F.embedding(paddle.to_tensor([7]), x[0]), ValueError),
        (lambda x: F.embedding(paddle.to_tensor([0]), x[0, 0]), ValueError),
        (lambda x: paddle.take_along_axis(x, paddle.full([2, 1, 4], 7, "int64"), 1), IndexError),
        (lambda x: F.cross_entropy(x, paddle.full([2, 3], 4, "int64")), IndexError),
        (lambda x: F.cross_entropy(x, paddle.full([2, 3], -1, "int64")), IndexError),
        (lambda x: x.expand([2, 5, 4]), ValueError),
        (lambda x: x.flip(3), (ValueError, RuntimeError)),
        (lambda x: x.max(5), (ValueError, RuntimeError, IndexError)),
        (lambda x: F.fold(x[:1, :, :1].expand([1, 3, 10]), [3, 4], [3, 1], [3, 1], [1, 0, 2, 1], [1, 2]), ValueError),
    ],
    ids=[
        "gather",
        "index_select",
        "embedding",
        "embedding of a row",
        "take_along_axis",
        "label",
        "negative label",
        "expand",
        "flip",
        "max",
        "fold",
    ],
)
def test_place_that_is_none_is_refused_in_paddles_words(function, error):
    with half_cpu.dispatch(backend="onednn"), pytest.raises(error):
        function(paddle.ones([2, 3, 4], "bfloat16"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, places: x[places],
        lambda x, places: x.take_along_axis(places, 1, broadcast=False),
        lambda x, places: F.cross_entropy(x, places),
    ],
    ids=["rows", "take_along_axis", "labels"],
)
def test_place_that_is_none_any_more_is_refused_by_the_backward_pass(function):
    """What is kept must not be written; memory that is no tensor's is not read or written even so."""
    x, places = paddle.ones([3, 4], "bfloat16"), paddle.to_tensor([[0], [2], [1]])
    x.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        result = function(x, places)
        places.set_value(paddle.full([3, 1], 1 << 40, "int64"))  # which nothing notices
        with pytest.raises(Exception, match="no place of the tensor"):
            result.sum().backward()


def test_index_from_the_end_counts_as_paddle_counts():
    x, places = paddle.arange(12).reshape([3, 4]).astype("bfloat16"), paddle.to_tensor([-1, 0])
    with half_cpu.dispatch(backend="onednn"):
        assert x[places].astype(FLOAT32).tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
        assert x.index_select(places, 1).astype(FLOAT32).tolist() == [[3, 0], [7, 4], [11, 8]]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(
    ("name", "shapes", "constants"),
    [
        ("maximum", [(0, 3), (0, 3)], ()),
        ("prelu", [(0, 3), (3,)], ("NCHW", "channel")),
        ("sigmoid_cross_entropy_with_logits", [(0, 3), (0, 3)], ()),
        ("cross_entropy_with_softmax", [(0, 3), (0, 3)], (True,)),
        ("max", [(0, 3)], (1,)),
        ("argmax", [(3, 0)], (1,)),
        ("cumsum", [(3, 0)], (1,)),
        ("expand", [(1, 0)], ([3, 0],)),
        ("tile", [(0, 3)], ([2, 1],)),
        ("flip", [(0, 3)], ([1],)),
        ("topk", [(0, 3)], (2,)),
        ("unfold", [(0, 3, 8, 8)], ([3, 3], [1, 1], [0] * 4, [1, 1])),
        ("fold", [(0, 9, 36)], ([8, 8], [3, 3], [1, 1], [0] * 4, [1, 1])),
        ("mean_all", [(0, 3)], ()),
        ("sin", [(0, 3)], ()),
    ],
)
def test_kernel_of_empty_tensors_leaves_them_to_the_reference(name, shapes, constants, dtype):
    kernel = half_cpu.kernels.find("onednn").kernels[name]
    inputs = [paddle.zeros(shape, dtype=dtype) for shape in shapes]
    assert kernel(None, (*inputs, *constants), {}) is NotImplemented


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shapes", [([1, 3], [3]), ([1, 1], []), ([1, 1, 2, 3], [2, 3]), ([3], [1, 3])], ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_gradient_of_a_tensor_with_fewer_axes_of_size_one_has_its_shape(name, shapes, dtype):
    x, y = (paddle.full(shape, value, dtype) for shape, value in zip(shapes, (1.0, 2.0), strict=True))
    x.stop_gradient = y.stop_gradient = False
    with half_cpu.dispatch(backend="onednn"):
        result = getattr(paddle, name)(x, y)
    result.backward(paddle.full_like(result, 3.0))
    assert (x.grad.shape, y.grad.shape) == shapes
    by_x, by_y = (0, 3) if name == "maximum" else (3, 0)
    assert (x.grad.astype(FLOAT32) == by_x).all() and (y.grad.astype(FLOAT32) == by_y).all()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_place_without_an_axis_is_that_among_all_numbers(name, dtype):
    x = tensors([(5, 3, 7)], dtype)[0].detach()
    expected = getattr(np, name)(x.astype(FLOAT32).numpy())
    with half_cpu.dispatch(backend="onednn"):
        found, kept = getattr(paddle, name)(x), getattr(x, name)(keepdim=True)
    assert (found.shape, kept.shape) == ([], [1, 1, 1])
    assert found.item() == kept.item() == expected


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 3, 1]], ids=["planes", "rows"])
def test_largest_of_whole_images_is_paddles_and_the_first_of_equal_ones_has_the_gradient(order, dtype, monkeypatch):
    values = np.random.default_rng(0).integers(-3, 3, (2, 19, 5, 7)).transpose(order).astype(FLOAT32)
    values[0, 0, 0, 1:3] = np.nan, -np.inf
    calls, results = Calls(monkeypatch, "max_pool2d_with_index"), []
    for number_format, backend in (("float32", "reference"), (dtype, "counted")):
        leaf = paddle.to_tensor(values).astype(number_format).transpose(np.argsort(order).tolist()).detach()
        leaf.stop_gradient = False
        with half_cpu.dispatch(backend=backend):
            largest, places = F.adaptive_max_pool2d(leaf, 1, return_mask=True)
        largest.backward(paddle.arange(38).reshape([2, 19, 1, 1]).astype(largest.dtype))
        results.append((largest, places, leaf.grad))
    assert calls.served
    (largest, places, gradient), (found, found_places, found_gradient) = results
    assert found_places.dtype == places.dtype and found.dtype == found_gradient.dtype == leaf.dtype
    for one, other in ((found, largest), (found_places, places), (found_gradient, gradient)):
        np.testing.assert_array_equal(one.astype(FLOAT32).numpy(), other.astype(FLOAT32).numpy())


@pytest.mark.parametrize("dtype", ALL)
def test_kernel_of_an_empty_index_or_mask_leaves_it_to_the_reference(dtype):
    kernels = half_cpu.kernels.find("onednn").kernels
    x, index = paddle.zeros([2, 3], dtype), paddle.zeros([0], "int64")
    assert kernels["gather"](None, (x, index, 0), {}) is NotImplemented
    assert kernels["embedding"](None, (index, x), {}) is NotImplemented
    assert kernels["take_along_axis"](None, (x, paddle.zeros([0, 3], "int64"), 0), {}) is NotImplemented
    assert kernels["where"](None, (paddle.zeros([0, 3], "bool"), x[:0], x[:0]), {}) is NotImplemented


# What reads x at places, or chooses by a mask, that were made of a tensor with gradients.
BY_PLACES = {
    "gather": lambda x, scores: x.gather(scores.topk(2)[1][0], axis=1),
    "take_along_axis": lambda x, scores: x.take_along_axis(scores.topk(2)[1], 1),
    "items": lambda x, scores: x[:, scores.topk(2)[1]],
    "embedding": lambda x, scores: F.embedding(scores.abs().clip(0, 3).astype("int64"), x),
    "where": lambda x, scores: paddle.where(scores.astype("bool"), x, x * 2.0),
    "masked_fill": lambda x, scores: x.masked_fill(scores.astype("bool"), 0.0),
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", BY_PLACES)
def test_places_found_in_a_tensor_with_gradients_get_none(name, dtype):
    gradients = []
    for backend in ("reference", "auto"):
        (x,) = tensors([(4, 33)], dtype)
        (leaf,) = tensors([(4, 33)], FLOAT32, seed=1)
        with half_cpu.dispatch(backend=backend):
            scores = leaf * 2.0
            BY_PLACES[name](x, scores).sum().backward()  # Paddle's engine once walked on to the places, and crashed
        assert leaf.grad is None
        gradients.append(x.grad)
    assert_same(*gradients)


@pytest.mark.parametrize("dtype", ALL)
def test_places_need_a_gradient_where_paddle_says_so(dtype):
    (x,) = tensors([(4, 33)], dtype)
    for function in (lambda x: x.topk(2)[1], lambda x: x.argsort()):
        flags = []
        for backend in ("reference", "auto"):
            with half_cpu.dispatch(backend=backend):
                flags += [function(x).stop_gradient, function(x.detach()).stop_gradient]
        assert flags == [False, True, False, True]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("padding", [None, 2])
def test_sparse_embedding_of_a_half_weight_has_a_dense_gradient(padding, dtype, backend):
    (weight,) = tensors([(5, 3)], dtype)
    with half_cpu.dispatch(backend=backend):
        F.embedding(paddle.to_tensor([[0, 2], [2, 3]]), weight, padding, sparse=True).sum().backward()
    assert weight.grad[:, 0].astype(FLOAT32).tolist() == [1.0, 0.0, 0.0 if padding else 2.0, 1.0, 0.0]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ALL)
def test_equal_numbers_keep_their_order_and_nan_is_the_largest(dtype, descending):
    (x,) = with_special_numbers(rounded_to_halves([(3, 100, 2)], dtype))
    expected = paddle.argsort(x.astype(FLOAT32), 1, descending, stable=True)
    with half_cpu.dispatch(backend="onednn"):
        assert paddle.argsort(x, 1, descending).tolist() == expected.tolist()
        for wanted in (5, 50):  # by a heap, and of all in order
            places = paddle.topk(x, wanted, axis=1, largest=descending)[1]
            assert places.tolist() == expected[:, :wanted].tolist()
