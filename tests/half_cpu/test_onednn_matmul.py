"""Products by oneDNN: their errors, what they keep for the backward pass, and GELU in the same primitive."""

import collections
import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.half_cpu import compiled, onednn_matmul, onednn_primitives
from tests.helpers.onednn_runs import (
    ALL,
    BFLOAT16,
    FLOAT32,
    HALVES,
    OF_ONEDNN,
    ROUNDING,
    Calls,
    needs_onednn,
    run,
    tensors,
)
from tests.helpers.policies import Policy

pytestmark = needs_onednn


def test_linear_without_matching_shapes_raises_paddles_error():
    x, weight = tensors([(3, 8), (7, 4)])
    with half_cpu.dispatch(), pytest.raises(ValueError, match="(?i)dim|shape"):
        F.linear(x, weight)


def test_gradients_of_frozen_inputs_are_not_computed():
    x, weight, bias = tensors([(3, 8), (8, 4), (4,)])
    x.stop_gradient = bias.stop_gradient = True
    _, (x_gradient, weight_gradient, bias_gradient) = run(F.linear, [x, weight, bias], "onednn")
    assert x_gradient is None and bias_gradient is None and weight_gradient is not None


def test_linear_keeps_bfloat16_activations_only():
    x, weight = tensors([(4, 8), (8, 4)])
    with half_cpu.dispatch():
        node = F.linear(x, weight).grad_fn
    assert node.name() == "GradNodePyLayer_Linear"


@pytest.mark.skipif(not compiled.formats() or not onednn_matmul.takes_signals(), reason="needs both kernels")
@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize(("rows", "features", "is_own", "is_packed_once"), [
    (1, 1024, True, False), (8, 3072, True, False), (9, 1024, False, True), (8, 1000, False, False),
    (128, 1000, False, True),
])  # fmt: skip
def test_few_float32_rows_are_multiplied_by_the_kernel_that_reads_each_row_once(
    rows, features, is_own, is_packed_once, is_frozen, monkeypatch
):
    """oneDNN takes up to twice as long where the rows of the other factor begin 4 KiB apart; frozen ones are packed."""
    monkeypatch.setattr(onednn_primitives.cache, "_entries", entries := collections.OrderedDict())
    onednn_matmul._prepared.cache_clear()
    layer = paddle.nn.Linear(70, features, bias_attr=False)
    x = tensors([(rows, 70)], FLOAT32)[0].detach()
    with paddle.no_grad(), half_cpu.dispatch(), half_cpu.frozen(layer) if is_frozen else contextlib.nullcontext():
        found = layer(x)
    products = [one.implementation for key, one in entries.items() if key[0] is onednn_matmul._describe]
    assert [name.startswith("compiled") for name in products] == [is_own]
    is_packed = any(key[0] is onednn_matmul._describe_packing for key in entries)
    assert is_packed == (is_packed_once and is_frozen)
    np.testing.assert_allclose(found.numpy(), x.numpy() @ layer.weight.numpy(), rtol=0, atol=70 * 2.0**-22)


# rows, columns, features: AMX by tiles and by columns, kernels of few rows and of few columns
PRODUCTS = {
    "linear": lambda x, weight, bias: F.linear(x, weight, bias),
    "linear without bias": lambda x, weight, bias: F.linear(x, weight),
    "matmul": lambda x, weight, bias: paddle.matmul(x, weight),
    "matmul transposed": lambda x, weight, bias: paddle.matmul(x, weight.T.contiguous(), transpose_y=True),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", [(2, 5, 3), (300, 96, 64), (4, 256, 1000), (1100, 544, 576)], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_that_a_product_rounds_itself_are_those_of_a_cast_and_so_are_their_gradients(name, sizes, dtype):
    rows, columns, features = sizes
    results = []
    for cast in (lambda weight: weight, lambda weight: weight.astype(dtype)):
        x, weight, bias = tensors([(rows, columns), (columns, features), (features,)], FLOAT32)
        x = x.detach().astype(dtype)
        x.stop_gradient = False
        with half_cpu.dispatch(policy=Policy(linear=dtype, matmul=dtype)):
            result = PRODUCTS[name](x, cast(weight), cast(bias))
        result.backward(result.detach())
        used = [weight] if "matmul" in name or "without" in name else [weight, bias]
        assert all(each.grad.dtype == paddle.float32 for each in used)
        results.append([each.astype("float32").numpy() for each in (result, x.grad, *(one.grad for one in used))])
    for own, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["linear", "matmul", "convolution", "by name"])
def test_product_of_float32_images_rounds_its_weights_itself(name, dtype):
    """So nothing stands between a product and its weights, whose gradients a cast would have to widen."""

    def convolution(x, weight, bias):
        return F.conv2d(x[..., None, None], weight.T[..., None, None])

    products = PRODUCTS | {"convolution": convolution, "by name": lambda x, weight, bias: paddle.matmul(x=x, y=weight)}
    results, behind = [], []
    for cast in (lambda x: x, lambda x: x.astype(dtype)):
        x, weight, bias = tensors([(6, 5), (5, 3), (3,)], FLOAT32)
        with half_cpu.dispatch(policy=Policy(linear=dtype, matmul=dtype, conv2d=dtype)):
            result = products[name](cast(x), weight, bias)
        behind.append([function.name() for function in result.grad_fn.next_functions][1:])
        result.backward(result.detach())
        results.append([each.astype("float32").numpy() for each in (result, x.grad, weight.grad)])
    for own, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(own, expected)
    assert behind[0] == behind[1]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shapes, transpose_x", [([(2, 3, 4), (2, 4, 5)], False), ([(4, 3), (4, 5)], True)])
def test_float32_factor_that_is_no_weight_of_rows_is_cast(shapes, transpose_x, dtype):
    results = []
    for cast in (lambda factor: factor, lambda factor: factor.astype(dtype)):
        x, factor = tensors(shapes, FLOAT32)
        half = x.astype(dtype).detach()
        half.stop_gradient = False
        with half_cpu.dispatch(policy=Policy(linear=dtype, matmul=dtype)):
            result = paddle.matmul(half, cast(factor), transpose_x=transpose_x)
        result.backward(result.detach())
        results.append([each.astype("float32").numpy() for each in (result, half.grad, factor.grad)])
    for own, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("dtype", ALL)
def test_product_of_a_single_row_is_right_after_one_that_is_written_as_a_column(dtype):
    """oneDNN keeps what it builds, and takes rows for equal whatever their stride."""
    column, slope, row, square = tensors([(1, 37, 1), (1, 37, 37), (1, 1, 37), (1, 37, 37)], dtype)
    bound = 2 * ROUNDING.get(dtype, 1e-6)  # of sums of 37 terms

    def assert_is_product(actual, left, right):
        expected = (left.astype("float64") @ right.astype("float64")).numpy()
        np.testing.assert_allclose(actual.astype("float64").numpy(), expected, rtol=bound, atol=4 * bound)

    with half_cpu.dispatch(backend="onednn"):
        result = paddle.matmul(column.detach(), column, transpose_y=True)
        (gradient,) = paddle.grad(result, column, slope)
        product = row @ square
    assert_is_product(gradient, slope.transpose([0, 2, 1]), column)
    assert_is_product(product, row, square)


def gelu_layer(dtype, bias=True):
    paddle.seed(0)
    layer = paddle.nn.Linear(96, 160, bias_attr=None if bias else False)
    layer.weight.set_value(layer.weight * 4)
    return layer if dtype == FLOAT32 else layer.to(dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ALL)
def test_linear_gelu_in_evaluation_is_one_product_of_the_same_value(dtype, bias, monkeypatch):
    calls = Calls(monkeypatch, "linear_gelu")
    layer = gelu_layer(dtype, bias)
    (x,) = tensors([(2, 75, 96)], dtype)
    with paddle.no_grad(), half_cpu.dispatch(backend="counted"):
        actual = layers.linear_gelu(layer, x)
    assert calls.served == 1
    assert actual.dtype == x.dtype
    weights = [parameter.astype("float64") for parameter in layer.parameters()]
    exact = F.gelu(F.linear(x.astype("float64"), *weights)).numpy()
    # One rounding of the exact value, half a unit in the last place; float32: a sum of 96 terms and oneDNN's erf.
    bound = ROUNDING[dtype] / 2 * np.abs(exact) + 1e-5 if dtype in HALVES else 1e-5 * np.abs(exact).max()
    assert (np.abs(actual.astype("float64").numpy() - exact) <= bound).all()


def test_linear_gelu_with_gradients_keeps_what_its_backward_needs(monkeypatch):
    calls = Calls(monkeypatch, "linear_gelu", "linear", "gelu")
    layer = gelu_layer(BFLOAT16)
    (x,) = tensors([(2, 3, 96)])
    with half_cpu.dispatch(backend="counted"):
        layers.linear_gelu(layer, x).sum().backward()
    assert calls.served == 2  # linear and GELU, one by one
    assert layer.weight.grad is not None and x.grad is not None


def test_linear_gelu_of_a_layer_with_hooks_calls_them():
    layer, seen = gelu_layer(FLOAT32), []
    layer.register_forward_post_hook(lambda layer, inputs, output: seen.append(output.shape))
    with paddle.no_grad(), half_cpu.dispatch():
        layers.linear_gelu(layer, paddle.ones([2, 96]))
    assert seen == [[2, 160]]


@pytest.mark.parametrize("dtype", OF_ONEDNN)
def test_column_sums_without_compiled_kernels_are_the_same(dtype, monkeypatch):
    if dtype == FLOAT32 and not onednn_matmul.takes_signals():
        pytest.skip("float32 is Paddle's then")
    tensor = paddle.randint(-1, 2, [131, 67]).astype(dtype)  # whole sums, exact in both formats
    with half_cpu.dispatch(backend="onednn"):
        expected = onednn_matmul.sum_rows(tensor, 131, 67, tensor.dtype)
        monkeypatch.setattr(onednn_matmul.compiled, "formats", frozenset)
        found = onednn_matmul.sum_rows(tensor, 131, 67, tensor.dtype)
    for sums in (expected, found):
        np.testing.assert_array_equal(sums.astype("float32").numpy(), tensor.astype("float32").numpy().sum(axis=0))


def with_gaps(shape, axes, first, dtype):
    """Return a part of a tensor along axes of a larger one, with NaN around it."""
    axes = axes if isinstance(axes, tuple) else (axes,)
    sizes = [size + 2 * (place in axes) for place, size in enumerate(shape)]
    whole = paddle.full(sizes, float("nan"))
    part = tuple(slice(first, first + size) if place in axes else slice(None) for place, size in enumerate(shape))
    whole[part] = paddle.randn(shape)
    return whole.astype(dtype)[part]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [
    ((3, 1, 64, 64), 1), ((1, 3, 64, 64), 1), ((2, 1, 2, 2), 0), ((2, 3, 1, 64, 64), 2), ((2, 1, 2, 64, 64), 3),
    ((2, 3, 2, 16, 16), 1), ((4, 2, 2, 16, 16), (1, 2)), ((3, 4, 2, 16, 16), (0, 1, 2)),
    ((3, 2, 2, 4, 2, 2), (1, 3, 4)),
    ((3, 64, 64), 0), ((3, 16, 16), 1),
])  # fmt: skip
def test_products_of_parts_along_any_axis_read_no_other_numbers(shape, axis, transposed, dtype):
    left, right = (with_gaps(shape, axis, first, dtype) for first in (1, 2))
    left.stop_gradient = right.stop_gradient = False
    gradient = paddle.randn(shape).astype(dtype)
    with half_cpu.dispatch():
        result = paddle.matmul(left, right, transpose_y=transposed)
    paddle.autograd.backward([result], [gradient])
    a, b, g = (one.astype("float64").numpy() for one in (left.detach(), right.detach(), gradient))
    turned = b.swapaxes(-1, -2)
    wanted = a @ (turned if transposed else b), g @ (b if transposed else turned), None
    last = g.swapaxes(-1, -2) @ a if transposed else a.swapaxes(-1, -2) @ g
    for found, exact in zip((result, left.grad, right.grad), (*wanted[:2], last), strict=True):
        # one rounding of the result, and of each of up to 64 summands in float32, which are at most 5 * 5
        bound = ROUNDING.get(dtype, 0) * np.abs(exact).max() + 64 * 2.0**-24 * 64 * 25
        assert np.abs(found.astype("float64").numpy() - exact).max() <= bound


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("left", "right", "transposed"), [
    ((64, 1, 64, 33), (1, 1, 33, 64), False), ((4, 1, 128, 33), (1, 1, 63, 33), True),
    ((2, 1, 1, 3, 64, 64), (1, 1, 1, 1, 64, 64), True), ((1, 1, 7, 33), (1, 1, 63, 33), True),
])  # fmt: skip
def test_factor_of_all_products_behind_single_axes_writes_no_memory_of_others(left, right, transposed, dtype):
    """oneDNN 3.6 wrote beyond its memory, which the process noticed some calls later."""
    x, y = paddle.randn(left).astype(dtype), paddle.randn(right).astype(dtype)
    x.stop_gradient = y.stop_gradient = False
    exact = paddle.matmul(x.detach().astype("float64"), y.detach().astype("float64"), transpose_y=transposed)
    for _ in range(10):
        with half_cpu.dispatch():
            result = paddle.matmul(x, y, transpose_y=transposed)
        result.sum().backward()
    assert float((result.astype("float64") - exact).abs().max()) <= 0.2  # half an ulp of 32 in bfloat16 is 0.125
