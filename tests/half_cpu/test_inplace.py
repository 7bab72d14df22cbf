"""Operators that write into half tensors: in-place arithmetic, assignment, batch normalisation, optimizers."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.amp.gradients import write
from tests.helpers.half_cpu_rounding import DTYPES, assert_rounded_once, half_tensor, round_half, widen
from tests.helpers.policies import Policy


def half_normal(*shape, dtype, seed=0):
    """Return (half tensor, the same values in float32)."""
    values = np.random.default_rng(seed).standard_normal(shape)
    wide = widen(round_half(values, dtype), dtype)
    return half_tensor(wide, dtype), paddle.to_tensor(wide)


INPLACE = {
    "add_": lambda x, y: x.add_(y),
    "subtract_": lambda x, y: x.subtract_(y),
    "multiply_": lambda x, y: x.multiply_(y),
    "divide_": lambda x, y: x.divide_(y),
    "scale_": lambda x, y: x.scale_(0.1),
    "clip_": lambda x, y: x.clip_(-0.5, 0.7),
    "exp_": lambda x, y: x.exp_(),
    "tanh_": lambda x, y: x.tanh_(),
    "relu_": lambda x, y: F.relu_(x),
    "softmax_": lambda x, y: F.softmax_(x),
    "elu_": lambda x, y: F.elu_(x),
    "leaky_relu_": lambda x, y: F.leaky_relu_(x),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "masked_fill_": lambda x, y: x.masked_fill_(paddle.to_tensor([True, False, True, True]), 0.1),
    "index_put_": lambda x, y: x.index_put_((paddle.to_tensor([0, 0]),), y[:2], True),
    "where_": lambda x, y: paddle.where_(paddle.to_tensor([True, False, True, True]), x, y),
    "reshape_": lambda x, y: x.reshape_([4, 3]),
    "squeeze_": lambda x, y: x.squeeze_(),
    "unsqueeze_": lambda x, y: x.unsqueeze_(0),
    "flatten_": lambda x, y: x.flatten_(),
    "zero_": lambda x, y: x.zero_(),
    "fill_": lambda x, y: x.fill_(0.1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", INPLACE)
def test_inplace_operator_keeps_the_tensor_and_its_dtype_and_rounds_once(name, dtype):
    call = INPLACE[name]
    half, wide = half_normal(3, 4, dtype=dtype)
    half_other, wide_other = half_normal(3, 4, dtype=dtype, seed=1)
    with half_cpu.dispatch(backend="reference"):
        result = call(half, half_other)
    assert result is half
    call(wide, wide_other)
    assert_rounded_once(half, wide, dtype, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in INPLACE if name not in ("zero_", "fill_", "where_", "lerp_")])
def test_inplace_operator_is_recorded_by_autograd(name, dtype):
    call = INPLACE[name]
    grads = []
    (half, wide), (half_other, wide_other) = half_normal(3, 4, dtype=dtype), half_normal(3, 4, dtype=dtype, seed=1)
    for x, other in ((half, half_other), (wide, wide_other)):
        x.stop_gradient = other.stop_gradient = False
        with half_cpu.dispatch(backend="reference"):
            y = paddle.assign(x)
            call(y, other)
            paddle.assign(y).backward(paddle.ones(y.shape).astype(y.dtype))
        grads.append((x.grad, other.grad))
    for got, wanted in zip(*grads, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert_rounded_once(got, wanted, dtype, f"gradient through {name}")


def test_inplace_with_a_wider_operand_keeps_the_written_dtype():
    x, wide = paddle.ones([3]).astype("float16"), paddle.full([3], 0.1)
    with half_cpu.dispatch(backend="reference"):
        x.add_(wide)
        assert x.dtype == paddle.float16
        wide.add_(x)
    assert wide.dtype == paddle.float32
    np.testing.assert_array_equal(x.numpy(), np.full(3, np.float32(1) + np.float32(0.1)).astype(np.float16))


def test_inplace_on_a_leaf_that_requires_a_gradient_is_an_error_and_changes_nothing():
    x = paddle.ones([3]).astype("float16")
    x.stop_gradient = False
    with half_cpu.dispatch(backend="reference"):
        with pytest.raises(ValueError, match="leaf"):
            x.add_(x.detach())
        with paddle.no_grad():
            x.add_(x.detach())
    assert x.tolist() == [2, 2, 2]


# Assignment to part of a tensor

ASSIGNMENTS = {
    "number": lambda x, y: x.__setitem__((slice(1, None), 0), 0.1),
    "slice": lambda x, y: x.__setitem__(slice(1, 3), y[:2]),
    "broadcast": lambda x, y: x.__setitem__(slice(0, 3), y[0]),
    "mask": lambda x, y: x.__setitem__(x > 0, 0.1),
    "indices": lambda x, y: x.__setitem__(paddle.to_tensor([2, 0]), y[:2]),
    "stride": lambda x, y: x.__setitem__((Ellipsis, slice(None, None, 2)), y[:, :2]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("wide_value", [False, True], ids=["half value", "float32 value"])
def test_set_item_rounds_the_value_and_passes_gradients(name, dtype, wide_value):
    assign = ASSIGNMENTS[name]
    (half, wide), (half_value, value) = half_normal(3, 4, dtype=dtype), half_normal(3, 4, dtype=dtype, seed=1)
    if wide_value:
        value = paddle.randn([3, 4])
        half_value, value = value, half_tensor(widen(round_half(value.numpy(), dtype), dtype), "float32")
    grads = []
    for x, y in ((half, half_value), (wide, value)):
        x.stop_gradient = y.stop_gradient = False
        with half_cpu.dispatch(backend="reference"):
            target = paddle.assign(x)
            assign(target, y)
            assert target.dtype == x.dtype
            paddle.assign(target).backward(paddle.full(target.shape, 0.75).astype(target.dtype))
        grads.append((target, x.grad, y.grad))
    (got, got_x, got_y), (wanted, wanted_x, wanted_y) = grads
    assert_rounded_once(got, wanted, dtype, "values")
    assert_rounded_once(got_x, wanted_x, dtype, "gradient of the tensor")
    assert (got_y is None) == (wanted_y is None)
    if got_y is not None and not wide_value:
        assert_rounded_once(got_y, wanted_y, dtype, "gradient of the value")


def test_set_item_of_a_half_value_into_float32_is_exact():
    x, value = paddle.zeros([3]), paddle.full([2], 0.1).astype("bfloat16")
    with half_cpu.dispatch(backend="reference"):
        x[1:] = value
    assert x.dtype == paddle.float32
    np.testing.assert_array_equal(x.numpy()[1:], value.astype("float32").numpy())


# Batch normalisation


def batch_norm(x, mean, variance, weight, bias, training):
    return F.batch_norm(x, mean, variance, weight, bias, training=training, momentum=0.9)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("statistics", ["float32", "half", "asked for their gradients"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_output_gradients_and_running_statistics(dtype, statistics, training):
    half, wide = half_normal(4, 3, 5, 5, dtype=dtype)
    rng = np.random.default_rng(1)
    values = [widen(round_half(rng.uniform(0.5, 2, 3), dtype), dtype) for _ in range(4)]
    parameters = [paddle.to_tensor(value) for value in values]
    half_parameters = [paddle.to_tensor(value) for value in values]
    if statistics != "float32":
        half_parameters = [half_tensor(value, dtype) for value in values]
    for tensors in ((half, *half_parameters[2:]), (wide, *parameters[2:])):
        for tensor in tensors:
            tensor.stop_gradient = False
    for tensor in half_parameters[:2]:
        tensor.stop_gradient = statistics != "asked for their gradients"  # as `model.parameters()` are
    expected = batch_norm(wide, *parameters, training)
    with half_cpu.dispatch(backend="reference"):
        actual = batch_norm(half, *half_parameters, training)
    assert_rounded_once(actual, expected, dtype, "output")
    for got, wanted, before in zip(half_parameters[:2], parameters[:2], values[:2], strict=True):
        assert (wanted.numpy() != before).any() == training
        assert training or got.inplace_version == 0  # so that the passes of an evaluation are recorded
        if statistics != "float32":
            assert_rounded_once(got, wanted, dtype, "running statistics")
        else:
            assert got.dtype == paddle.float32
            np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    gradient = paddle.randn([4, 3, 5, 5]).astype(dtype)
    expected.backward(gradient.astype("float32"))
    actual.backward(gradient)
    assert_rounded_once(half.grad, wide.grad, dtype, "gradient of the images")
    for got, wanted in zip(half_parameters[2:], parameters[2:], strict=True):
        if statistics != "float32":
            assert_rounded_once(got.grad, wanted.grad, dtype, "gradient of a parameter")
        else:
            np.testing.assert_array_equal(got.grad.numpy(), wanted.grad.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_saved_statistics_stay_float32_and_running_ones_are_those_given(dtype):
    x = paddle.randn([4, 3, 5, 5]).astype(dtype)
    mean, variance = paddle.zeros([3]).astype(dtype), paddle.ones([3])
    with half_cpu.dispatch(backend="reference"):
        results = paddle._C_ops.batch_norm(
            x, mean, variance, paddle.ones([3]), paddle.zeros([3]), False, 0.9, 1e-5, "NCHW", False, False
        )
    output, running_mean, running_variance, saved_mean, saved_variance, _ = results
    assert output.dtype == x.dtype
    assert running_mean is mean
    assert running_variance.dtype == saved_mean.dtype == saved_variance.dtype == paddle.float32
    np.testing.assert_allclose(saved_mean.numpy(), x.astype("float32").mean([0, 2, 3]).numpy(), rtol=1e-4, atol=1e-6)


def test_batch_norm_of_float32_images_with_half_parameters_stays_float32():
    x = paddle.randn([4, 3, 2, 2])
    layer = paddle.nn.BatchNorm2D(3)
    layer.to(dtype="float16")
    with half_cpu.dispatch(backend="reference"):
        assert layer(x).dtype == paddle.float32
    assert layer._mean.dtype == paddle.float16
    assert np.abs(layer._mean.numpy()).sum() > 0


@pytest.mark.parametrize("make", [paddle.nn.LayerNorm, lambda n: paddle.nn.GroupNorm(2, n)], ids=["layer", "group"])
def test_norm_with_float32_parameters_follows_the_half_images(make):
    layer = make(4)
    x = paddle.randn([2, 4]).astype("bfloat16") if isinstance(layer, paddle.nn.LayerNorm) else None
    x = paddle.randn([2, 4, 3, 3]).astype("bfloat16") if x is None else x
    with half_cpu.dispatch(backend="reference"):
        y = layer(x)
    assert y.dtype == paddle.bfloat16
    y.astype("float32").sum().backward()
    assert layer.weight.grad.dtype == paddle.float32


# Optimizers

OPTIMIZERS = {
    "SGD": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "Momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, weight_decay=0.01, use_nesterov=True),
    "Adam": lambda p: paddle.optimizer.Adam(0.1, parameters=p),
    "AdamW": lambda p: paddle.optimizer.AdamW(0.1, parameters=p, weight_decay=0.1),
    "AdamW clipped": lambda p: paddle.optimizer.AdamW(
        0.1, parameters=p, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1)
    ),
    "Lamb": lambda p: paddle.optimizer.Lamb(0.1, parameters=p),
    "RMSProp": lambda p: paddle.optimizer.RMSProp(0.1, parameters=p),
    "Adagrad": lambda p: paddle.optimizer.Adagrad(0.1, parameters=p),
    "Adamax": lambda p: paddle.optimizer.Adamax(0.1, parameters=p),
    "Adadelta": lambda p: paddle.optimizer.Adadelta(10.0, parameters=p),
    "NAdam": lambda p: paddle.optimizer.NAdam(0.1, parameters=p),
    "RAdam": lambda p: paddle.optimizer.RAdam(0.1, parameters=p),
    "merged Momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, use_multi_tensor=True),
    "merged Adam": lambda p: paddle.optimizer.Adam(0.1, parameters=p, use_multi_tensor=True),
}


def half_layer(values, dtype):
    """Return a layer whose only parameter holds `values`."""
    layer = paddle.nn.Linear(*values.shape, bias_attr=False)
    layer.weight.set_value(values)
    if dtype != "float32":
        layer.to(dtype=dtype)
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_step_on_half_parameters_is_the_float32_step_rounded(name, dtype):
    rng = np.random.default_rng(0)
    values, gradient = (widen(round_half(rng.standard_normal((3, 4)), dtype), dtype) for _ in range(2))
    layers = {kind: half_layer(values, kind) for kind in (dtype, "float32")}
    for kind, layer in layers.items():
        optimizer = OPTIMIZERS[name](layer.parameters())
        with half_cpu.dispatch(backend="reference"):
            layer.weight.grad = paddle.to_tensor(gradient).astype(kind)
            optimizer.step()
    weight = layers[dtype].weight
    assert weight.dtype == getattr(paddle, dtype)
    if name in ("SGD", "Adam", "AdamW"):
        assert_rounded_once(weight, layers["float32"].weight, dtype, name)
    # The other optimizers keep half state or compute with several operators: a few roundings.
    ulp = {"float16": 2**-10, "bfloat16": 2**-7}[dtype]
    moved = layers["float32"].weight.numpy() - values
    assert np.abs(moved).max() > 0.005
    np.testing.assert_allclose(
        weight.astype("float32").numpy(), layers["float32"].weight.numpy(), rtol=2 * ulp, atol=4 * ulp * 0.1
    )


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "AdamW clipped"])
def test_optimizer_with_masters_updates_them_in_float32_and_rounds_the_parameter(name):
    rng = np.random.default_rng(0)
    values, gradient = (widen(round_half(rng.standard_normal((3, 4)), "float16"), "float16") for _ in range(2))
    layers = {kind: half_layer(values, kind) for kind in ("float16", "float32")}
    for kind, layer in layers.items():
        optimizer = OPTIMIZERS[name](layer.parameters())
        optimizer._multi_precision = True
        for _ in range(3):
            with half_cpu.dispatch(backend="reference"):
                layer.weight.grad = paddle.to_tensor(gradient).astype(kind)
                optimizer.step()
        if kind == "float16":
            (master,) = optimizer._master_weights.values()
    np.testing.assert_array_equal(master.numpy(), layers["float32"].weight.numpy())
    assert_rounded_once(layers["float16"].weight, layers["float32"].weight, "float16", "parameter")


def test_gradient_clipping_of_half_gradients_scales_them_to_the_norm():
    layer = half_layer(np.ones((2, 2), "float32"), "float16")
    gradient = paddle.full([2, 2], 30.0).astype("float16")
    with half_cpu.dispatch(backend="reference"):
        ((_, clipped),) = paddle.nn.ClipGradByGlobalNorm(1.0)([(layer.weight, gradient)])
    assert clipped.dtype == paddle.float16
    # Paddle rounds the norm, the ratio and the product.
    np.testing.assert_allclose(clipped.numpy(), 0.5, rtol=3 * 2**-11)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_tensor_takes_float32_numbers_rounded_where_it_lies(dtype, backend):
    values = np.random.default_rng(0).standard_normal([7, 33]).astype("float32") * 1000
    values[0, :3] = np.inf, np.nan, 70000  # beyond float16
    half, wide = paddle.zeros([7, 33], dtype), paddle.to_tensor(values)
    place, version = half.data_ptr(), half.inplace_version
    with half_cpu.dispatch(backend=backend), paddle.no_grad():
        write(half, wide)
    assert half.data_ptr() == place and half.inplace_version > version
    assert_rounded_once(half, wide, dtype, "numbers")


def test_half_tensor_that_is_strided_takes_float32_numbers_too():
    half, wide = paddle.zeros([4, 6], "bfloat16"), paddle.randn([6, 4])
    with half_cpu.dispatch(), paddle.no_grad():
        write(half.transpose([1, 0]), wide)
    assert_rounded_once(half.transpose([1, 0]), wide, "bfloat16", "numbers")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("policy", [None, "bfloat16"])
def test_tensor_given_as_out_takes_result_shape_and_format_and_has_its_gradient(policy, dtype):
    """As Paddle's own operators write there in float32, whatever it was before."""
    x, out = paddle.full([2, 3], 2.0).astype(dtype), paddle.zeros([7], "float64")
    x.stop_gradient = False
    with half_cpu.dispatch(policy and Policy(policy)):
        found = paddle.multiply(x, x, out=out)
        values, places = paddle.zeros([1]), paddle.zeros([1])
        paddle.topk(x.detach(), 1, out=(values, places))
    assert str(out.dtype) == str(found.dtype) == f"paddle.{policy or dtype}" and values.shape == places.shape == [2, 1]
    out.astype("float32").sum().backward()
    assert (out == 4.0).all() and (values == 2.0).all() and (x.grad == 4.0).all()
