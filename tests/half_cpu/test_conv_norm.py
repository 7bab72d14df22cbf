"""Convolution, BatchNorm, sum and activation as one kernel, against float64 and against the layers one by one."""

import collections
import itertools

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.half_cpu import onednn_convolution_passes, onednn_primitives
from image_classification.layers import ConvNorm, ConvSequence, conv_norm, norm_activation
from tests.helpers.onednn_runs import ALL, FLOAT32, HALVES, ROUNDING, Calls, needs_onednn

pytestmark = needs_onednn
ACTIVATIONS = (None, F.relu, F.relu6, F.hardswish, F.silu, F.gelu)
# input channels, output channels, window, stride, groups; images of odd sides
SHAPES = {
    "stem": (3, 32, 7, 2, 1), "square": (32, 48, 3, 1, 1), "odd": (5, 7, 3, 1, 1),
    "pointwise": (64, 96, 1, 1, 1), "shortcut": (64, 96, 1, 2, 1), "grouped": (32, 48, 3, 2, 4),
    "depthwise": (48, 48, 3, 1, 48), "depthwise-strided": (40, 40, 5, 2, 40), "two-of-each": (24, 48, 3, 1, 24),
    "one": (1, 1, 1, 1, 1),
}  # fmt: skip


def layer(shape="square", activation=F.relu, seed=0):
    """Return a ConvNorm whose norm has random parameters and statistics."""
    paddle.seed(seed)
    made = ConvNorm(*SHAPES[shape], activation=activation)
    channels = SHAPES[shape][1]
    made.bn.weight.set_value(paddle.randn([channels]))
    made.bn.bias.set_value(paddle.randn([channels]))
    made.bn._mean.set_value(paddle.randn([channels]) * 0.1)
    made.bn._variance.set_value(paddle.rand([channels]) + 0.5)
    made.eval()
    return made


def in_format(made, dtype):
    """Return the layer with its weight, and nothing else, in the format."""
    if dtype != FLOAT32:
        made.conv.to(dtype=dtype)
    return made


def exactly(made, x, residual=None):
    """Return what the layer computes in float64."""
    wide = lambda tensor: tensor.detach().astype("float64")  # noqa: E731
    conv, bn = made.conv, made.bn
    y = F.conv2d(wide(x), wide(conv.weight), None, conv._stride, conv._padding, conv._dilation, conv._groups)
    y = F.batch_norm(y, wide(bn._mean), wide(bn._variance), wide(bn.weight), wide(bn.bias), epsilon=bn._epsilon)
    y = y if residual is None else y + wide(residual)
    return (y if made.activation is None else made.activation(y)).numpy()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_conv_norm_in_evaluation_is_one_convolution_of_one_rounding(shape, dtype, monkeypatch):
    entries = collections.OrderedDict()
    monkeypatch.setattr(onednn_primitives.cache, "_entries", entries)
    onednn_convolution_passes._prepared.cache_clear()
    for (images, *sides), activation in itertools.product(((2, 11, 9), (1, 1, 1)), ACTIVATIONS):
        for has_residual in (False, True):
            made = in_format(layer(shape, activation), dtype)
            x = paddle.randn([images, SHAPES[shape][0], *sides]).astype(dtype).transpose([0, 1, 3, 2])
            residual = paddle.randn(exactly(made, x).shape).astype(dtype) if has_residual else None
            calls = Calls(monkeypatch, "conv_norm", "norm_activation", "conv2d", "batch_norm")
            with paddle.no_grad(), half_cpu.dispatch(backend="counted"):
                actual = made(x, residual)
            assert calls.served == 1
            assert actual.dtype == x.dtype
            exact = exactly(made, x, residual)
            # Half a unit in the last place, and sums of up to 288 float32 terms, which may cancel.
            bound = (ROUNDING[dtype] / 2 * np.abs(exact) if dtype in HALVES else 0) + 2e-5 * max(np.abs(exact).max(), 1)
            error = np.abs(actual.astype("float64").numpy() - exact)
            assert (error <= bound).all(), (activation, has_residual, (error / bound).max())
    assert [entry for entry in entries.values() if entry.implementation.startswith("ref")] == []


def trained(made, dtype, residual, seed=0):
    """Return (result, gradients of x, residual, scale and shift, running statistics) of the norm and what follows."""
    inputs = [images(made, 1)] if residual is None else [images(made, 1), residual]
    inputs = [tensor.astype(dtype) for tensor in inputs]
    for tensor in inputs:
        tensor.stop_gradient = False
    bn = made.bn
    out = norm_activation(inputs[0], bn, made.activation, *inputs[1:])
    weights = paddle.to_tensor(np.random.default_rng(seed).standard_normal(out.shape).astype("float32"))
    paddle.autograd.backward([out], [weights.astype("bfloat16").astype(out.dtype)])  # in each format the same number
    gradients = [tensor.grad.astype("float64").numpy() for tensor in (*inputs, bn.weight, bn.bias)]
    return out.astype("float64").numpy(), gradients, [bn._mean.numpy(), bn._variance.numpy()]


def images(made, seed):
    """Return images that bfloat16 holds exactly, which lie as [B, H, W, C]."""
    values = np.random.default_rng(seed).standard_normal([3, 7, 5, made.bn.weight.shape[0]]).astype("float32")
    return paddle.to_tensor(values).astype("bfloat16").astype("float32").transpose([0, 3, 1, 2])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", ["square", "odd", "stem"])
def test_norm_activation_with_gradients_is_one_kernel_of_the_same_value(shape, training, dtype, monkeypatch):
    for activation in ACTIVATIONS:
        for has_residual in (False, True):
            if has_residual and activation not in (None, F.relu, F.relu6):
                continue  # these need their input for the gradient: one by one
            found = []
            for kind in (dtype, "float64"):
                made = layer(shape, activation)
                made.bn.train() if training else made.bn.eval()
                residual = images(made, 2) if has_residual else None
                calls = Calls(monkeypatch, "norm_activation", "batch_norm", "relu", "add")
                if kind == "float64":
                    made.bn.to(dtype=kind)
                    found.append(trained(made, kind, residual))
                    continue
                with half_cpu.dispatch(backend="counted"):
                    found.append(trained(made, kind, residual))
                assert calls.served == 1
            (out, gradients, running), (exact, exact_gradients, exact_running) = found
            u = ROUNDING.get(dtype, 0)
            assert (np.abs(out - exact) <= u / 2 * np.abs(exact) + 1e-5 * np.abs(exact).max()).all()
            for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
                largest = np.abs(exact_gradient).max()
                # a rounding of the result, and the residual's gradient, which is rounded first: docs/half_cpu.md
                assert (np.abs(gradient - exact_gradient) <= u * np.abs(exact_gradient) + (u + 2e-5) * largest).all()
            for one, other in zip(running, exact_running, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ALL)
def test_inf_and_nan_are_hidden_neither_in_evaluation_nor_in_training(dtype):
    for value in (np.inf, np.nan):
        made = in_format(layer("pointwise", F.relu), dtype)
        x = paddle.randn([1, 64, 3, 3])
        x[0, 5, 1, 1] = value
        with paddle.no_grad(), half_cpu.dispatch():
            together = made(x.astype(dtype))
            alone = made.conv(x.astype(dtype))
            expected = F.relu(made.bn(alone))
        finite = np.isfinite(together.astype(FLOAT32).numpy())
        assert (finite == np.isfinite(expected.astype(FLOAT32).numpy())).all()
        made.bn.train()
        with half_cpu.dispatch():
            assert not np.isfinite(norm_activation(alone, made.bn, F.relu).astype(FLOAT32).numpy()).all()


def test_statistics_and_results_in_training_are_those_of_the_layers_one_by_one():
    found = []
    for hooked in (False, True):
        made = layer()
        made.train()
        if hooked:
            made.bn.register_forward_post_hook(lambda *arguments: None)
        with half_cpu.dispatch():
            out = made(images(layer("pointwise"), 3)[:, :32])
        found.append([out.numpy(), made.bn._mean.numpy(), made.bn._variance.numpy()])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=0, atol=1e-6)
    assert (found[0][1] == found[1][1]).all() and (found[0][2] == found[1][2]).all()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("mode", ["fp32", "auto", "O1", "O2", "naive"])
def test_conv_norm_with_gradients_has_the_bits_of_convolution_and_norm_and_calls_no_layer(mode, dtype, monkeypatch):
    if (mode == "fp32") != (dtype == FLOAT32):
        return
    called = []
    monkeypatch.setattr(nn.Conv2D, "forward", _noting(nn.Conv2D.forward, called))
    for shape, has_residual, trains in itertools.product(("square", "depthwise"), (False, True), (False, True)):
        found = []
        for hooked in (False, True):
            precision = amp.build_precision(mode, None if mode == "fp32" else dtype)
            made = precision.convert_model(layer(shape))
            made.train() if trains else made.eval()
            if hooked:  # then the layer is called, and its result may have other readers
                made.conv.register_forward_post_hook(lambda *arguments: None)
            channels = SHAPES[shape][0]
            x = paddle.randn([2, 56, 54, channels]).transpose([0, 3, 1, 2])  # beside it more than branches.LARGE
            x, residual = x.astype(dtype), paddle.ones([2, 48, 56, 54], dtype) if has_residual else None
            x.stop_gradient = False
            before = len(called)
            with precision.forward_context():
                out = made(x * 1, residual)
                loss = out.astype(FLOAT32).square().mean()
            loss.backward()
            assert len(called) - before == hooked
            # the statistics, which get no gradients, are parameters, too
            parameters = [each if each.grad is None else each.grad for each in made.parameters()]
            found.append([tensor.astype(FLOAT32).numpy() for tensor in (out, x.grad, *parameters)])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def _noting(function, called):
    def noting(*arguments):
        called.append(arguments)
        return function(*arguments)

    return noting


class Watched(nn.BatchNorm2D):
    """A norm of another kind, as a tool puts it there."""

    def forward(self, x):
        self.seen = x.shape
        return super().forward(x)


@pytest.mark.parametrize("place", ["conv", "bn", "kind", "instance"])
def test_layer_that_is_watched_or_replaced_is_called(place):
    made, seen = layer(), []
    if place == "kind":
        other = Watched(48)
        other.set_state_dict(made.bn.state_dict())
        made.bn = other
        made.eval()
    elif place == "instance":
        forward = made.conv.forward
        made.conv.forward = lambda x: seen.append(x.shape) or forward(x)
    else:
        getattr(made, place).register_forward_post_hook(lambda layer, inputs, output: seen.append(inputs[0].shape))
    for context in (paddle.no_grad, paddle.enable_grad):
        with context(), half_cpu.dispatch():
            made(paddle.randn([1, 32, 5, 5]))
    expected = [1, 48, 5, 5] if place in ("bn", "kind") else [1, 32, 5, 5]
    assert (seen or [made.bn.seen] * 2) == [expected] * 2


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("mode", "options"), [
    ("auto", {}), ("auto", {"black_list": ["relu"]}), ("auto", {"black_list": ["batch_norm"]}),
    ("auto", {"black_list": ["conv2d"]}), ("O0", {}), ("O1", {}), ("O2", {}), ("O3", {}), ("naive", {}),
])  # fmt: skip
def test_every_mode_returns_the_dtype_that_the_layers_one_by_one_return(mode, options, dtype):
    found = []
    for hooked in (False, True):
        made = nn.Sequential(layer(), ConvSequence(nn.Conv2D(48, 8, 1, bias_attr=False), nn.BatchNorm2D(8), nn.ReLU()))
        made.eval()
        precision = amp.build_precision(mode, None if mode == "O0" else dtype, options=options)
        made = precision.convert_model(made)
        if hooked:
            for each in made.sublayers():
                each.register_forward_post_hook(lambda *arguments: None)
        dtypes = []
        for context in (paddle.no_grad, paddle.enable_grad):
            with context(), precision.forward_context():
                out = made(paddle.ones([2, 32, 6, 6]))
            dtypes.append((out.dtype, out.astype(FLOAT32).numpy()))
        found.append(dtypes)
    for (one, values), (other, expected) in zip(*found, strict=True):
        assert one == other
        # three roundings in a layer, of which the kernel has one, and two layers
        np.testing.assert_allclose(values, expected, rtol=0, atol=6 * ROUNDING[dtype] * np.abs(expected).max())


def test_half_images_and_float32_layers_without_a_policy_are_promoted_as_ever():
    made = layer()
    with paddle.no_grad(), half_cpu.dispatch():
        x = paddle.randn([1, 32, 5, 5]).astype("bfloat16")
        assert made(x).dtype == F.relu(made.bn(made.conv(x))).dtype


@pytest.mark.parametrize("dtype", ALL)
def test_frozen_layers_return_the_same_bits_and_statistics_that_move_are_seen(dtype):
    made = layer("grouped")
    precision = amp.build_precision("fp32") if dtype == FLOAT32 else amp.build_precision("auto", dtype)
    x = paddle.randn([2, 32, 6, 6])

    def run():
        with paddle.no_grad(), precision.forward_context():
            return made(x).astype(FLOAT32).numpy()

    expected = run()
    with half_cpu.frozen(made):
        assert (run() == expected).all() and (run() == expected).all()
    made.bn._mean.set_value(made.bn._mean + 1.0)
    assert not (run() == expected).all()


def test_frozen_norms_that_share_their_parameters_keep_their_own_statistics():
    """They differ in the variance, or in epsilon, alone."""
    paddle.seed(0)
    conv = nn.Conv2D(3, 8, 3, bias_attr=False)
    norms = [nn.BatchNorm2D(8), nn.BatchNorm2D(8), nn.BatchNorm2D(8, epsilon=0.5)]
    for norm in norms[1:]:
        norm.weight, norm.bias, norm._mean = norms[0].weight, norms[0].bias, norms[0]._mean
    norms[1]._variance.set_value(norms[1]._variance * 4.0)
    norms[2]._variance = norms[0]._variance
    every = nn.LayerList([conv, *norms])
    every.eval()
    x = paddle.randn([2, 3, 8, 8])
    with paddle.no_grad():
        expected = [norm(conv(x)).numpy() for norm in norms]
        with half_cpu.frozen(every), half_cpu.dispatch():
            found = [conv_norm(x, conv, norm).numpy() for norm in norms]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)  # float32 sums of 27 numbers in another order
