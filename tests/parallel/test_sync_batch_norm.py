"""SyncBatchNorm's arithmetic, in one process; with several processes: test_parallel.py."""

import numpy
import paddle
import pytest
from paddle import nn

from image_classification.parallel.group import Group
from image_classification.parallel.sync_batch_norm import SyncBatchNorm, convert_sync_batch_norm
from image_classification.runtime import UserError


def expected(x, weight, bias, d_out, epsilon):
    """Return output and gradients in float64."""
    axes, shape = (0, 2, 3), [1, -1, 1, 1]
    x, d_out = x.astype("float64"), d_out.astype("float64")
    mean, scale = x.mean(axes).reshape(shape), 1 / numpy.sqrt(x.var(axes) + epsilon).reshape(shape)
    normalized = (x - mean) * scale
    d_bias, d_weight = d_out.sum(axes), (d_out * normalized).sum(axes)
    shift = (d_bias.reshape(shape) + normalized * d_weight.reshape(shape)) * x.shape[1] / x.size
    out = normalized * weight.reshape(shape) + bias.reshape(shape)
    return {"out": out, "x": weight.reshape(shape) * scale * (d_out - shift), "weight": d_weight, "bias": d_bias}


def test_sums_of_many_images_are_as_exact_as_paddles_batch_norm():
    # AdamW's first step turns an error of a gradient near zero into a step of the learning rate: sums that add one
    # number after the other (errors up to 1e-5 here) made the losses of 20 steps drift by 2e-5.
    generator = numpy.random.default_rng(1)
    x, d_out = (generator.standard_normal([32, 16, 56, 56], dtype="float32") + mean for mean in (1, 0))
    weight, bias = numpy.linspace(0.5, 1.5, 16, dtype="float32"), numpy.linspace(-1, 1, 16, dtype="float32")
    model = nn.Sequential(nn.BatchNorm2D(16))
    model[0].weight.set_value(weight)
    model[0].bias.set_value(bias)
    convert_sync_batch_norm(model, Group("alone", [0], 0))
    image = paddle.to_tensor(x, stop_gradient=False)
    out = model(image)
    out.backward(paddle.to_tensor(d_out))
    got = {"out": out, "x": image.grad, "weight": model[0].weight.grad, "bias": model[0].bias.grad}
    exact = expected(x, weight, bias, d_out, 1e-5)
    errors = {name: numpy.linalg.norm(got[name].numpy() - value) / numpy.linalg.norm(value)
              for name, value in exact.items()}  # fmt: skip
    assert {name: error for name, error in errors.items() if error > 5e-7} == {}  # Paddle's own: up to 3e-7


ALONE = Group("alone", [0], 0)


def train(model, x):
    """Return output and gradients, {name: array}, of one step in training."""
    image = paddle.to_tensor(x, stop_gradient=False)
    out = model(image)
    (out * out).sum().backward()
    found = {"out": out, "x": image.grad} | {name: value.grad for name, value in model.named_parameters()}
    found |= {f"moved {name}": value for name, value in model.state_dict().items()}
    return {name: value.numpy() for name, value in found.items() if value is not None}


SETTINGS = {
    "momentum-epsilon": lambda: nn.BatchNorm2D(3, momentum=0.3, epsilon=0.1),
    "global-statistics": lambda: nn.BatchNorm2D(3, use_global_stats=True),
    "without-weight": lambda: nn.BatchNorm2D(3, weight_attr=False),
    "without-bias": lambda: nn.BatchNorm2D(3, bias_attr=False),
    "one-axis": lambda: nn.BatchNorm1D(3, data_format="NC"),
    "three-axes": lambda: nn.BatchNorm3D(3, momentum=0.5),
}


@pytest.mark.parametrize("frozen", ["", "weight", "bias"])
@pytest.mark.parametrize("make", SETTINGS.values(), ids=SETTINGS)
def test_converted_layer_alone_does_what_the_plain_one_does(make, frozen):
    plain, model = nn.Sequential(make()), nn.Sequential(make())
    for each in (plain, model):
        each[0]._mean.set_value(numpy.float32([0.5, -1, 2]))
        if getattr(each[0], frozen or "none", None) is not None:
            getattr(each[0], frozen).stop_gradient = True
    convert_sync_batch_norm(model, ALONE)
    assert isinstance(model[0], SyncBatchNorm)
    spatial = {nn.BatchNorm1D: [], nn.BatchNorm2D: [5, 5], nn.BatchNorm3D: [3, 2, 2]}[type(plain[0])]
    x = numpy.random.default_rng(2).standard_normal([8, 3, *spatial], dtype="float32")
    got, expected_ = train(model, x), train(plain, x)
    assert f"0.{frozen}" not in got and got.keys() >= expected_.keys()  # Paddle's needs both to give one a gradient
    for name, value in expected_.items():
        numpy.testing.assert_allclose(got[name], value, rtol=1e-5, atol=2e-5, err_msg=name)  # sums of 200 numbers


def test_converted_layer_learns_behind_a_frozen_one():
    model = nn.Sequential(nn.BatchNorm2D(3))
    convert_sync_batch_norm(model, ALONE)
    model(paddle.randn([4, 3, 2, 2])).sum().backward()  # of images no gradient is asked for
    assert model[0].bias.grad.tolist() == [16.0] * 3


def test_conversion_keeps_the_layer_its_hooks_and_its_mode():
    layer, seen = nn.BatchNorm2D(3), []
    layer.register_forward_post_hook(lambda *call: seen.append("out"))
    layer.eval()
    shared = nn.Sequential(layer, nn.Sequential(layer))
    names = list(shared.state_dict())
    convert_sync_batch_norm(shared, ALONE)
    assert shared[0] is layer and shared[1][0] is layer and not layer.training
    assert list(shared.state_dict()) == names
    shared(paddle.randn([2, 3, 2, 2]))
    assert seen == ["out"] * 2


@pytest.mark.parametrize(("make", "message"), [
    (lambda: nn.BatchNorm2D(3, data_format="NHWC"), "PARALLEL.SYNC_BN: 0 is NHWC, which is not channels first"),
    (lambda: type("Own", (nn.BatchNorm2D,), {})(3), "PARALLEL.SYNC_BN: 0 is Own, which is not BatchNorm1D"),
])  # fmt: skip
def test_layer_that_has_no_statistics_over_processes_is_an_error(make, message):
    with pytest.raises(UserError, match=message):
        convert_sync_batch_norm(nn.Sequential(make()), ALONE)


def test_model_without_batch_norm_is_a_warning_and_has_nothing_to_synchronize(caplog):
    assert convert_sync_batch_norm(nn.Sequential(nn.LayerNorm(3)), ALONE) is False
    assert "PARALLEL.SYNC_BN: the model has no BatchNorm" in caplog.text
    assert convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2D(3)), ALONE) is True
    assert len(caplog.records) == 1
