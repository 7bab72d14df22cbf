"""Gradients of half weights that wait in half at their masters: what a step makes of them, and what others see."""

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.amp.gradients import as_it_waits
from image_classification.amp.masters import MasterParameter

MODES = [(mode, dtype) for mode in ("O2", "naive") for dtype in ("float16", "bfloat16")]
OPTIMIZERS = {
    "AdamW": lambda p: paddle.optimizer.AdamW(1e-2, parameters=p, weight_decay=0.1),
    "Momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, weight_decay=1e-2),
    "SGD": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    # these read gradients before their operators do, or have none of ours
    "AdamW, groups": lambda p: paddle.optimizer.AdamW(1e-2, parameters=[{"params": p}]),
    "AdamW, clipped": lambda p: paddle.optimizer.AdamW(1e-2, parameters=p, grad_clip=nn.ClipGradByValue(1e-3)),
    "RMSProp": lambda p: paddle.optimizer.RMSProp(1e-2, parameters=p),
}


@pytest.fixture(autouse=True)
def _kernels():
    with half_cpu.dispatch():
        if not half_cpu.widens_gradients():
            pytest.skip("needs kernels that widen as they read")


def prepared(mode="O2", dtype="bfloat16", scale=1024.0, **options):
    """Return (precision, model, masters), every call the same."""
    paddle.seed(0)
    precision = amp.build_precision(mode, dtype=dtype, options={"loss_scale": scale}, **options)
    model = precision.convert_model(nn.Sequential(nn.Linear(33, 130), nn.LayerNorm(130), nn.Linear(130, 5)))
    return precision, model, [master for _, master in precision.master_params(model)]


def backward(precision, model, seed=0):
    """Leave the gradients of a random batch."""
    images = paddle.to_tensor(np.random.default_rng(seed).standard_normal((6, 33)).astype("float32"))
    with precision.forward_context():
        loss = (model(images).astype("float32") ** 2).mean()
    precision.backward(loss)


def trained(make, mode, dtype, before=lambda masters: None, steps=3, **options):
    """Return the masters, the optimizer's state and the norms after some steps, before each of which `before` looks."""
    precision, model, masters = prepared(mode, dtype, **options)
    optimizer, norms = make(masters), []
    for step in range(steps):
        backward(precision, model, step)
        before(masters)
        norms.append(precision.step(optimizer).grad_norm)
        assert all(master.grad is None for master in masters)
    state = [tensor for states in optimizer._accumulators.values() for tensor in states.values()]
    return [tensor.numpy() for tensor in (*masters, *state)], norms


@pytest.mark.parametrize(("mode", "dtype"), MODES)
@pytest.mark.parametrize(("clip", "scale"), [(None, 1024.0), (1e-2, 1024.0), (None, 1.0)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_of_gradients_that_wait_is_the_step_of_those_that_were_read_bit_for_bit(name, clip, scale, mode, dtype):
    waited, read = [], []

    def look(masters):
        waited.extend(as_it_waits(master).dtype for master in masters)

    def widen(masters):
        read.extend(master.grad.dtype for master in masters)

    make = OPTIMIZERS[name]
    actual, norms = trained(make, mode, dtype, look, scale=scale, clip_grad_norm=clip)
    expected, expected_norms = trained(make, mode, dtype, widen, scale=scale, clip_grad_norm=clip)
    assert getattr(paddle, dtype) in waited
    assert set(read) == {paddle.float32}
    assert norms == expected_norms
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradient_that_waits_is_read_in_float32_by_whoever_asks(dtype):
    precision, model, masters = prepared(dtype=dtype)
    backward(precision, model)
    master = masters[0]
    expected = as_it_waits(master).astype("float32").numpy()
    assert np.abs(expected).max() > 0
    with paddle.no_grad():
        assert master.grad.dtype == paddle.float32
    np.testing.assert_array_equal(master.grad.numpy(), expected)
    assert master._grad_ivar().dtype == paddle.float32
    assert [as_it_waits(one).dtype for one in masters] == [paddle.float32] * len(masters)  # those that came with it too
    assert model[0].weight.grad is None


def test_copy_of_a_master_copies_neither_others_nor_gradients_that_wait():
    precision, model, masters = prepared()
    backward(precision, model)
    memo: dict = {}
    twin = copy.deepcopy(masters[0], memo)
    np.testing.assert_array_equal(twin.numpy(), masters[0].numpy())
    assert twin.grad is None and not any(id(other) in memo for other in masters[1:])


def test_gradients_of_several_passes_are_added_in_float32():
    precision, model, masters = prepared()
    kept = []
    for seed in range(3):
        backward(precision, model, seed)
        kept.append([as_it_waits(master).astype("float32").numpy() for master in masters])
        for master in masters:
            master.clear_gradient(False)
    for seed in range(3):
        backward(precision, model, seed)
    for master, *gradients in zip(masters, *kept, strict=True):
        first, second, third = gradients
        np.testing.assert_array_equal(master.grad.numpy(), (first + second) + third)


def test_step_of_gradients_that_wait_takes_no_float32_memory_for_them():
    precision = amp.build_precision("O2", dtype="bfloat16", options={"loss_scale": 1.0})
    model = precision.convert_model(nn.Linear(512, 1024, bias_attr=False))
    optimizer = paddle.optimizer.SGD(0.1, parameters=[master for _, master in precision.master_params(model)])
    statistics = paddle.base.core
    for _ in range(2):  # the first call builds what is kept for others
        with precision.forward_context():
            loss = model(paddle.ones([1, 512])).sum()
        loss.backward()
        before = statistics.host_memory_stat_current_value("Allocated", 0)
        statistics.host_memory_stat_reset_peak_value("Allocated", 0)
        precision.collect()
        assert precision.step(optimizer).applied
        peak = statistics.host_memory_stat_peak_value("Allocated", 0) - before
    assert peak < 0.1 * 4 * 512 * 1024
    assert statistics.host_memory_stat_current_value("Allocated", 0) <= before - 2 * 512 * 1024


def test_overflow_in_gradients_that_wait_skips_the_step():
    precision, model, masters = prepared("O2", "float16")
    optimizer = OPTIMIZERS["AdamW"](masters)
    before = [master.numpy().copy() for master in masters]
    with precision.forward_context():
        loss = (model(paddle.ones([6, 33])).astype("float32") * 1e4).sum()
    precision.backward(loss)
    assert paddle.float16 in [as_it_waits(master).dtype for master in masters]
    result = precision.step(optimizer)
    assert not result.applied and result.first_bad == "0.weight"
    for master, values in zip(masters, before, strict=True):
        np.testing.assert_array_equal(master.numpy(), values)
        assert master.grad is None


def test_optimizer_of_the_half_weights_is_refused_and_one_of_the_weights_before_the_conversion_is_not():
    """The former would update weights without gradients: each step would be applied, and nothing trained."""
    precision, model, _ = prepared()
    backward(precision, model)
    with pytest.raises(ValueError, match=r"holds half weights of the model: give it precision.master_params"):
        precision.step(paddle.optimizer.SGD(0.1, parameters=model.parameters()))
    layer = nn.Linear(3, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    precision.convert_model(layer)
    assert precision.step(optimizer).applied


@pytest.mark.parametrize("when", ["before", "after", "with one waiting", "between steps"])
def test_hook_of_a_master_sees_each_gradient_once_in_float32(when):
    precision = amp.build_precision("O2", dtype="bfloat16", options={"loss_scale": 1.0})
    layer, seen = nn.Linear(33, 5), []
    if when == "before":
        layer.weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    model = precision.convert_model(layer)
    master = precision.master(model.weight)
    if when in ("with one waiting", "between steps"):
        backward(precision, model)
    if when == "between steps":
        master.clear_gradient(False)
    if when != "before":
        master.register_hook(lambda gradient: seen.append(gradient.dtype))
    assert seen == []
    backward(precision, model)
    assert seen == [paddle.float32]


def test_gradient_that_is_set_takes_the_place_of_the_one_that_waits():
    precision, model, masters = prepared()
    backward(precision, model)
    masters[0].grad = paddle.ones_like(masters[0])
    assert (masters[0].grad.numpy() == 1).all()
    masters[-1].clear_gradient(False)
    assert masters[-1].grad is None
    masters[-2].clear_gradient()
    assert (masters[-2].grad.numpy() == 0).all()


def test_copy_of_a_model_has_no_gradient_and_leaves_the_one_that_waits():
    precision, model, masters = prepared()
    backward(precision, model)
    expected = as_it_waits(masters[0]).astype("float32").numpy()
    twin = copy.deepcopy(model)
    assert all(master.grad is None for _, master in precision.master_params(twin))
    np.testing.assert_array_equal(masters[0].grad.numpy(), expected)


def test_optimizer_that_steps_by_itself_gets_float32():
    precision, model, masters = prepared()
    read, waiting = prepared()[2], masters
    optimizers = [paddle.optimizer.SGD(0.1, parameters=params) for params in (waiting, read)]
    backward(precision, model)
    for master, other in zip(waiting, read, strict=True):
        other.grad = as_it_waits(master).astype("float32")
    for optimizer in optimizers:
        optimizer.step()
    for master, other in zip(waiting, read, strict=True):
        np.testing.assert_array_equal(master.numpy(), other.numpy())


def test_nothing_waits_where_no_kernel_widens(monkeypatch):
    monkeypatch.setattr(half_cpu, "widens_gradients", lambda: False)
    precision, model, masters = prepared()
    backward(precision, model)
    assert not any(isinstance(master, MasterParameter) for master in masters)
    assert {master.grad.dtype for master in masters} == {paddle.float32}
