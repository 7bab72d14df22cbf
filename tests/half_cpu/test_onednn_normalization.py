"""Norms by oneDNN beside Paddle's."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.amp import build_precision
from tests.helpers.onednn_runs import (
    ALL,
    BFLOAT16,
    FLOAT32,
    HALVES,
    ROUNDING,
    Calls,
    needs_onednn,
    run,
    statistics,
    tensors,
)

pytestmark = needs_onednn


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_softmax_of_a_number_without_axes_is_paddles(function):
    number = paddle.to_tensor(3.0)
    with half_cpu.dispatch():
        assert function(number).item() == float(function is F.softmax)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_softmax_over_another_axis_is_paddles(dtype):
    (x,) = tensors([(3, 5, 33)])
    (expected,) = tensors([(3, 5, 33)], FLOAT32)
    with half_cpu.dispatch(backend="onednn"):
        result = F.softmax(x.detach().astype(dtype), axis=1).astype(FLOAT32)
    expected = F.softmax(expected.detach().astype(dtype).astype(FLOAT32), axis=1)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), atol=2.0**-9)  # one rounding to bfloat16, below 1


@pytest.mark.parametrize("dtype", ALL)
def test_group_norm_without_parameters_has_the_gradient_of_ones_and_zeros(dtype):
    """Paddle's own float32 kernel gets it wrong."""
    inputs = tensors([(2, 6, 35)], dtype)
    actual, (gradient,) = run(lambda x: F.group_norm(x, 3), inputs, "onednn")
    parameters = paddle.ones([6], dtype), paddle.zeros([6], dtype)
    expected, (other,) = run(lambda x: F.group_norm(x, 3, 1e-5, *parameters), inputs, "onednn")
    assert (actual.astype(FLOAT32).numpy() == expected.astype(FLOAT32).numpy()).all()
    assert (gradient.astype(FLOAT32).numpy() == other.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("dtype", ALL)
def test_batch_norm_updates_the_running_statistics_as_paddle_does(dtype):
    results = []
    for backend in ("reference", "onednn"):
        x, scale, shift = tensors([(4, 8, 5, 3), (8,), (8,)], dtype)
        mean, variance = statistics(8)
        with half_cpu.dispatch(backend=backend):
            F.batch_norm(x, mean, variance, scale.astype(FLOAT32), shift.astype(FLOAT32), training=True, momentum=0.8)
        results.append((mean.numpy(), variance.numpy()))
    for actual, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)  # sums of 60 float32 terms


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("shape", "channels", "order", "alike"),
    [
        ((9, 24), 24, "NC", (9, 24, 1, 1)),
        ((4, 24, 7), 24, "NCL", (4, 24, 7, 1)),
        ((2, 24, 3, 2, 5), 24, "NCDHW", (2, 24, 6, 5)),
        ((4, 7, 24), 24, "NLC", (4, 7, 1, 24)),
        ((4, 5, 3, 24), 24, "NHWC", (4, 5, 3, 24)),
    ],
    ids=["rows", "lines", "volumes", "lines-channels-last", "channels-last"],
)
def test_batch_norm_of_other_axes_has_the_bits_of_images(shape, channels, order, alike, dtype, trains, monkeypatch):
    def as_it_is(x, scale, shift):
        return F.batch_norm(x, *statistics(channels), scale, shift, training=trains, data_format=order)

    def as_images(x, scale, shift):
        images = x.reshape(alike)
        if order.endswith("C") and x.ndim > 2:
            images = images.transpose([0, 3, 1, 2])
        images = F.batch_norm(images, *statistics(channels), scale, shift, training=trains)
        if order.endswith("C") and x.ndim > 2:
            images = images.transpose([0, 2, 3, 1])
        return images.reshape(shape)

    calls = Calls(monkeypatch, "batch_norm")
    inputs = tensors([shape, (channels,), (channels,)], dtype)
    found, expected = (run(function, inputs, "counted") for function in (as_it_is, as_images))
    assert calls.served == 2
    for one, other in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        assert (one.astype(FLOAT32).numpy() == other.astype(FLOAT32).numpy()).all()


def test_batch_norm_rounds_the_moved_statistics_as_single_operators_do_and_counts_as_a_write():
    (x,) = tensors([(4, 37, 5, 3)], FLOAT32)
    batch, running = [paddle.zeros([37]), paddle.zeros([37])], list(statistics(37))
    expected = [tensor.clone() for tensor in running]
    versions = [tensor.inplace_version for tensor in running]
    with half_cpu.dispatch(backend="onednn"):
        F.batch_norm(x, *batch, paddle.ones([37]), paddle.zeros([37]), training=True, momentum=0.0)
        F.batch_norm(x, *running, paddle.ones([37]), paddle.zeros([37]), training=True, momentum=0.83)
    for own, version, old, new in zip(running, versions, expected, batch, strict=True):
        assert own.inplace_version > version
        np.testing.assert_array_equal(own.numpy(), (old.scale(0.83) + new.scale(1.0 - 0.83)).numpy())


@pytest.mark.parametrize("strided", [(0,), (1,), (0, 1, 2, 3)], ids=["mean", "variance", "all"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", ALL)
def test_batch_norm_of_strided_statistics_and_parameters_touches_no_other_numbers(dtype, training, strided):
    """A column of a table, as of norms that choose their statistics by a domain."""
    (x,) = tensors([(4, 8, 5, 3)], dtype)
    columns = [tensor * 1.0 for tensor in (*statistics(8), *statistics(8)[::-1])]
    table = paddle.stack([one for column in columns for one in (column, paddle.full([8], 99.0))], axis=1)
    results = []
    chosen = [table[:, 2 * place] if place in strided else column.clone() for place, column in enumerate(columns)]
    for mean, variance, scale, shift in (columns, chosen):
        with half_cpu.dispatch(backend="onednn"):
            results.append(F.batch_norm(x, mean, variance, scale, shift, training=training).astype(FLOAT32).numpy())
    # once a kernel's and once the reference's: one rounding of the largest result
    bound = (ROUNDING[dtype] if dtype in HALVES else 1e-5) * np.abs(results[0]).max()
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=bound)
    assert (table[:, 1::2] == 99.0).all()


def test_batch_norm_statistics_of_channels_far_from_zero_do_not_cancel():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 7, 11, 20)) * generator.uniform(0.5, 2, 20) + np.linspace(-1000, 1000, 20)
    images[..., 5] = 1e20  # a constant whose square is inf
    images = images.astype("float32")
    mean, variance = paddle.zeros([20]), paddle.ones([20])
    with half_cpu.dispatch(backend="onednn"):
        x = paddle.to_tensor(images).transpose([0, 3, 1, 2])
        F.batch_norm(x, mean, variance, paddle.ones([20]), paddle.zeros([20]), training=True, momentum=0.0)
    exact = images.astype("float64")
    np.testing.assert_allclose(mean.numpy(), exact.mean((0, 1, 2)), rtol=1e-6)  # float32 numbers: 1e-7 apart
    np.testing.assert_allclose(variance.numpy(), exact.var((0, 1, 2)), rtol=1e-4)  # 1e-7 * 1000 of one deviation


def normalised(dtype, norm, linear, of):
    """Return what a linear layer makes of `of(x, norm)` in mixed precision, the dtype in between, and the gradients."""
    (x,) = tensors([(3, 49, 35)], FLOAT32)
    for layer in (norm, linear):
        layer.clear_gradients()
    with build_precision("auto", dtype=dtype).forward_context():
        between = of(x, norm)
        out = linear(between)
    out.backward(tensors([out.shape], dtype)[0].detach())
    gradients = x.grad, norm.weight.grad, norm.bias.grad, linear.weight.grad
    return between.dtype, [out.astype(FLOAT32), *(gradient.clone() for gradient in gradients)]


@pytest.mark.parametrize("dtype", HALVES)
def test_norm_that_products_alone_read_is_rounded_as_it_is_written(dtype):
    norm, linear = paddle.nn.LayerNorm(35), paddle.nn.Linear(35, 11)
    norm.weight.set_value(paddle.linspace(-1, 2, 35))
    expected_dtype, expected = normalised(dtype, norm, linear, lambda x, norm: norm(x))
    actual_dtype, actual = normalised(dtype, norm, linear, layers.product_norm)
    assert (expected_dtype, actual_dtype) == (paddle.float32, getattr(paddle, dtype))
    unit = {"float16": 2.0**-10, BFLOAT16: 2.0**-7}[dtype]
    for one, other in zip(actual, expected, strict=True):
        # The norm's sums have another order: a number may be rounded to the other side.
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=unit * float(other.abs().max()))


def test_norm_with_a_hook_or_without_a_policy_stays_as_it_is():
    norm, x = paddle.nn.LayerNorm(8), paddle.ones([2, 8])
    with half_cpu.dispatch():
        assert layers.product_norm(x, norm).dtype == paddle.float32
    seen = []
    norm.register_forward_post_hook(lambda layer, inputs, output: seen.append(output.dtype))
    with build_precision("auto", dtype=BFLOAT16).forward_context():
        assert layers.product_norm(x, norm).dtype == paddle.float32
    assert seen == [paddle.float32]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("use_global_stats", [None, False, True])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_layer_takes_the_statistics_that_paddle_takes(training, use_global_stats, dtype):
    """Among them those of the batch in an evaluation, the gradient of which Paddle's own kernel gets wrong."""
    (x,) = tensors([(4, 8, 5, 3)], dtype, scale=3.0)
    results = []
    for backend in ("onednn", "reference"):
        norm = paddle.nn.BatchNorm2D(8, use_global_stats=use_global_stats)
        norm.training = training
        with half_cpu.dispatch(backend=backend):
            results.append([tensor.astype(FLOAT32).numpy() for tensor in (norm(x), norm._mean, norm._variance)])
    unit = 2.0**-7 if dtype == BFLOAT16 else 2.0**-10  # a rounding to a half format, of either
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=unit, atol=1e-5)
    of_the_batch = not use_global_stats if use_global_stats is not None else training
    assert of_the_batch == (abs(results[0][0].mean()) < 0.01) == bool(results[0][1].any())


def test_gradient_of_a_norm_by_its_batch_is_the_same_in_evaluation():
    inputs = tensors([(4, 8, 5, 3), (8,), (8,)], FLOAT32)
    gradients = [
        run(lambda x, w, b, training=training: F.batch_norm(x, *statistics(8), w, b, training, use_global_stats=False),
            inputs, "onednn")[1]
        for training in (True, False)
    ]  # fmt: skip
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


# Rows of less than a vector and more, of which a block keeps eight, or of long ones four, and those that oneDNN has;
# rows that go by four, that are left over, and of more than one block.
@pytest.mark.parametrize("columns", [1, 7, 8, 15, 16, 17, 31, 33, 48, 200, 1600, 4096, 4097])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 32, 75])
def test_layer_norm_of_rows_of_every_kind_is_float64s(rows, columns):
    for dtype in ALL:
        inputs = tensors([(rows, columns), (columns,), (columns,)], dtype)
        inputs[0].set_value((inputs[0] * 0.5 + 3).astype(dtype))
        actual, gradients = run(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b, 1e-3), inputs, "onednn")
        x, scale, shift = (tensor.astype(FLOAT32).numpy().astype(np.float64) for tensor in inputs)
        seed = np.random.default_rng(1).standard_normal(x.shape).astype("float32")
        seed = paddle.to_tensor(seed).astype(dtype).astype(FLOAT32).numpy().astype(np.float64)
        factor = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-3)
        v, slope = (x - x.mean(1, keepdims=True)) * factor, seed * scale
        slope = slope - slope.mean(1, keepdims=True) - v * (slope * v).mean(1, keepdims=True)
        expected = [v * scale + shift, slope * factor, (seed * v).sum(0), seed.sum(0)]
        for found, exact in zip([actual, *gradients], expected, strict=True):
            # One rounding, and float32's of numbers around 3 that are 0.5 apart, times the factors.
            bound = ROUNDING.get(dtype, 0) / 2 * np.abs(exact) + 1e-5 * max(np.abs(exact).max(), factor.max())
            assert (np.abs(found.astype(FLOAT32).numpy() - exact) <= bound).all(), (dtype, rows, columns)


@pytest.mark.parametrize("dtype", ALL)
def test_layer_norm_of_a_row_depends_on_no_other_row(dtype):
    def outcome(rows):
        inputs = [paddle.concat([x[r : r + 1] for r in rows]).detach(), *tensors([(40,), (40,)], dtype, 1)]
        inputs[0].stop_gradient = False
        with half_cpu.dispatch(backend="onednn"):
            result = F.layer_norm(inputs[0], 40, *inputs[1:])
        paddle.autograd.backward([result], [result.detach()])
        return [tensor.astype(FLOAT32).numpy() for tensor in (result, inputs[0].grad)]

    (x,) = tensors([(40, 40)], dtype)
    x = x.detach()
    x[5, 38], x[6, 39] = float("inf"), float("nan")
    together = outcome(range(40))
    for r in range(40):
        for whole, alone in zip(together, outcome([r]), strict=True):
            np.testing.assert_array_equal(whole[r], alone[0])
            assert np.isnan(alone).all() == (r in (5, 6))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("columns", [8, 1000, 1001])
def test_softmax_of_a_row_with_nan_or_inf_is_nan_as_the_docs_have_it(columns, special, dtype):
    x = np.zeros((2, columns), np.float32)
    x[0, 3] = special
    with half_cpu.dispatch(backend="onednn"):
        row, other = F.softmax(paddle.to_tensor(x).astype(dtype)).astype(FLOAT32).numpy()
    expected = np.full(columns, np.nan, np.float32)
    if dtype is FLOAT32 and columns > 1000:  # oneDNN's
        expected[[*range(3), *range(4, columns)]] = 0
    np.testing.assert_array_equal(row, expected)
    assert np.isfinite(other).all()


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_gradient_of_layer_norm_of_equal_large_numbers_is_finite(dtype):
    """Lanes beyond the end of a row would be an infinite number of deviations away from its mean."""
    x = paddle.full([5, 3], 2.0**70).astype(dtype)
    x.stop_gradient = False
    _, (gradient,) = run(lambda x: F.layer_norm(x, 3, paddle.ones([3], dtype), None, 1e-37), [x], "onednn")
    seed = np.random.default_rng(1).standard_normal([5, 3]).astype("float32")
    seed = paddle.to_tensor(seed).astype(dtype).astype(FLOAT32).numpy()
    exact = (seed - seed.mean(1, keepdims=True)) / 1e-37**0.5
    np.testing.assert_allclose(gradient.astype(FLOAT32).numpy(), exact, rtol=2.0**-8, atol=1e12)  # of 1e18
