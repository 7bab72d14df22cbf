"""One step in every mode: what is applied, what is skipped, and that a skipped step leaves no trace."""

import itertools
import math

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp, half_cpu
from image_classification.amp.gradients import count_zeros, first_non_finite, multiply, squared_norm
from image_classification.amp.levels import LEVELS
from tests.helpers.amp_models import MODES, batch, bits, build, forward, network, train


def everything(precision, model, optimizer):
    """Return the bits of weights, masters, buffers and the optimizer's state."""
    tensors = dict(model.state_dict())
    tensors |= {f"master {name}": tensor for name, tensor in precision.master_params(model)}
    states = optimizer.state_dict().items()
    tensors |= {f"optimizer {name}": tensor for name, tensor in states if isinstance(tensor, paddle.Tensor)}
    return bits(tensors)


def spoil(precision, model, value, name="7.weight"):
    """Put one value into one gradient."""
    param = dict(precision.master_params(model))[name]
    gradient = param.grad.astype("float32").numpy()
    gradient.flat[3] = value
    param.grad.set_value(paddle.to_tensor(gradient).astype(param.grad.dtype))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), *MODES])
def test_step_with_a_non_finite_gradient_leaves_every_bit_as_it_was(mode, dtype, value):
    precision = amp.build_precision(mode, dtype=dtype, options={} if mode == "fp32" else {"init_scale": 1024.0})
    model, optimizer = build(precision)
    train(precision, model, optimizer, steps=2)
    before = everything(precision, model, optimizer)
    precision.backward(forward(precision, model, *batch()))
    running = {name for name in before if "_mean" in name or "_variance" in name}  # the forward pass moves these
    spoil(precision, model, value)
    scale = precision.loss_scale
    result = precision.step(optimizer)
    after = everything(precision, model, optimizer)
    assert (result.applied, result.first_bad, result.loss_scale) == (False, "7.weight", scale)
    assert result.grad_norm is None
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} <= running
    assert all(param.grad is None for _, param in precision.master_params(model))
    assert all(param.grad is None for param in model.parameters())
    # one bad step moves the scale where the rule's patience is 1
    moves = mode in ("auto", "O0", "O1", "O2", "O3")
    assert precision.loss_scale == (scale / 2 if moves else scale)
    # and the run goes on
    precision.backward(forward(precision, model, *batch()))
    assert precision.step(optimizer).applied


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_static_scale_skips_too(mode, dtype):
    """Apex steps with inf under a static scale; nobody wants that."""
    precision = amp.build_precision(mode, dtype=dtype, options={"loss_scale": 128.0})
    model, optimizer = build(precision)
    precision.backward(forward(precision, model, *batch()))
    spoil(precision, model, float("inf"))
    assert not precision.step(optimizer).applied
    assert precision.loss_scale == 128.0


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_accumulated_backward_passes_equal_one_of_the_whole_batch(mode, dtype):
    """Two halves of a batch, each loss halved, give the gradients of the whole; batch norm is left out of the model.

    Tolerance: gradients of each half are rounded to the half format (unit roundoff 2^-11 and 2^-8) a few times.
    """
    images, labels = batch()
    gradients = []
    for pieces in (1, 2):
        precision = amp.build_precision(mode, dtype=dtype, options={"init_scale": 256.0})
        model = precision.convert_model(paddle.nn.Sequential(paddle.nn.Flatten(), paddle.nn.Linear(192, 5)))
        weight = model[1].weight
        weight.set_value(paddle.linspace(-0.1, 0.1, 960).reshape([192, 5]).astype(weight.dtype))
        for x, y in zip(paddle.split(images, pieces), paddle.split(labels, pieces), strict=True):
            precision.backward(forward(precision, model, x, y) / pieces)
        master = dict(precision.master_params(model))["1.weight"]
        gradients.append(master.grad.astype("float32").numpy() / precision.loss_scale)
    tolerance = {"float32": 1e-6, "float16": 2**-9, "bfloat16": 2**-6}[dtype]
    np.testing.assert_allclose(*gradients, rtol=tolerance, atol=tolerance * np.abs(gradients[0]).max())


def test_half_gradients_accumulate_in_float32():
    """2048 + 1 in float16 is 2048; in the float32 gradient of the master it is 2049."""
    precision = amp.build_precision("O2", options={"loss_scale": 1.0})
    model = precision.convert_model(paddle.nn.Linear(1, 1, bias_attr=False))
    for factor in (2048.0, 1.0):
        with precision.forward_context():
            precision.backward(model(paddle.full([1, 1], factor)).sum())
    ((_, master),) = precision.master_params(model)
    assert master.grad.item() == 2049.0


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), *MODES])
def test_clipping_scales_unscaled_gradients_to_the_norm(mode, dtype):
    """A plain SGD step of rate 1 moves the weights by the clipped gradient, so its norm can be read off them."""
    precision = amp.build_precision(mode, dtype=dtype, clip_grad_norm=0.01)
    model, optimizer = build(precision, "SGD")
    optimizer.set_lr(1.0)
    before = {name: param.astype("float32").numpy() for name, param in precision.master_params(model)}
    while True:
        precision.backward(forward(precision, model, *batch()))
        result = precision.step(optimizer)
        if result.applied:
            break
    moved = [param.astype("float32").numpy() - before[name] for name, param in precision.master_params(model)]
    norm = math.sqrt(sum(float((move.astype("float64") ** 2).sum()) for move in moved))
    assert result.grad_norm > 0.01
    # without masters the update is rounded into half weights: about 1 in 2^-11 (2^-8) of each weight, here of size 1
    assert norm == pytest.approx(0.01, rel=1e-3 if mode != "O3" else 1.0)


def test_reported_norm_is_that_of_the_plain_float32_gradients():
    plain = amp.build_precision("fp32")
    model, optimizer = build(plain)
    plain.backward(forward(plain, model, *batch()))
    expected = math.sqrt(
        sum(float((p.grad.numpy().astype("float64") ** 2).sum()) for _, p in plain.master_params(model))
    )
    assert plain.step(optimizer).grad_norm == pytest.approx(expected, rel=1e-6)
    scaled = amp.build_precision("O0", options={"loss_scale": 2.0**20})
    model, optimizer = build(scaled)
    scaled.backward(forward(scaled, model, *batch()))
    assert scaled.step(optimizer).grad_norm == pytest.approx(expected, rel=1e-5)


def test_small_gradients_are_not_clipped():
    updates = []
    for clip in (None, 1e6):
        precision = amp.build_precision("fp32", clip_grad_norm=clip)
        model, optimizer = build(precision)
        train(precision, model, optimizer, steps=1)
        updates.append(bits(model.state_dict()))
        precision.backward(forward(precision, model, *batch()) * 0.0)
        assert precision.step(optimizer).grad_norm == 0.0
    assert updates[0] == updates[1]


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**40])
def test_scaling_by_a_power_of_two_changes_no_bit_of_a_float32_run(scale):
    runs = []
    for options in (None, {"loss_scale": scale}):
        precision = amp.build_precision("fp32" if options is None else "O0", options=options)
        model, optimizer = build(precision)
        losses = train(precision, model, optimizer)
        runs.append((losses, bits(precision.model_state_dict(model))))
    assert runs[0] == runs[1]


def test_plain_float32_takes_paddles_own_steps():
    """Bit for bit with the same CPU kernels; tests/half_cpu/test_onednn.py compares those with Paddle's."""
    precision = amp.build_precision("fp32")
    model, optimizer = build(precision)
    losses = train(precision, model, optimizer)
    plain = network()
    adamw = paddle.optimizer.AdamW(0.01, parameters=plain.parameters())
    expected = []
    for _ in range(3):
        with half_cpu.dispatch():
            loss = F.cross_entropy(plain(batch()[0]), batch()[1])
            loss.backward()
            adamw.step()
        adamw.clear_grad()
        expected.append(loss.item())
    assert losses == expected
    assert bits(model.state_dict()) == bits(plain.state_dict())


@pytest.mark.parametrize(("mode", "dtype"), [("auto", "float16"), ("O2", "float16"), ("naive", "bfloat16")])
def test_zeros_are_counted_when_asked_for(mode, dtype):
    precision = amp.build_precision(mode, dtype=dtype, options={"log_num_zeros_in_grad": True, "init_scale": 64.0})
    model = precision.convert_model(paddle.nn.Linear(4, 3))
    optimizer = paddle.optimizer.SGD(0.1, parameters=[param for _, param in precision.master_params(model)])
    images = paddle.to_tensor([[1.0, 0.0, 2.0, 0.0]])
    with precision.forward_context():
        precision.backward(model(images).sum())
    assert precision.step(optimizer).num_zeros == 6  # two inputs of zero, three outputs each
    with precision.forward_context():
        precision.backward(model(images).sum())
    spoil(precision, model, float("nan"), "weight")
    assert precision.step(optimizer).num_zeros is None


@pytest.mark.parametrize(("mode", "dtype"), [("auto", "float16"), ("naive", "float16")])
def test_step_that_counts_zeros_is_the_step_of_one_that_does_not(mode, dtype):
    """Gradients are unscaled before they are counted, and not again by the optimizer; a power of two changes no bit."""
    weights = []
    for counts in (False, True):
        precision = amp.build_precision(mode, dtype=dtype, options={"log_num_zeros_in_grad": counts, "init_scale": 64})
        model, optimizer = build(precision, "Momentum")
        train(precision, model, optimizer, steps=2)
        weights.append(bits(model.state_dict()))
    assert weights[0] == weights[1]


class Recording(amp.Reduction):
    """Two data ranks, of which the other one has the gradients of this one times `factor`."""

    def __init__(self, factor=1.0, other_found_inf=False):
        self.calls = []
        self.factor = factor
        self.other = other_found_inf

    def found_inf(self, flag):
        assert isinstance(flag, bool)
        self.calls.append("found_inf")
        return flag or self.other

    def average_gradients(self, named_params, squares):
        self.calls.append("average")
        for _, param in named_params:
            param.grad = param.grad * (0.5 + 0.5 * self.factor)
        return self.norm_squared(named_params)

    def norm_squared(self, named_params):
        self.calls.append("norm")
        return super().norm_squared(named_params)


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), *MODES])
def test_finite_check_is_agreed_on_before_any_other_collective(mode, dtype):
    reduction = Recording(factor=3.0)
    precision = amp.build_precision(
        mode, dtype=dtype, options={} if mode == "fp32" else {"init_scale": 16.0}, reduction=reduction
    )
    model, optimizer = build(precision, "SGD")
    precision.backward(forward(precision, model, *batch()))
    before = squared_norm([p.grad for _, p in precision.master_params(model)])
    result = precision.step(optimizer)
    assert reduction.calls == ["found_inf", "average", "norm"]
    assert result.applied
    scale = result.loss_scale
    assert result.grad_norm == pytest.approx(2 * math.sqrt(before) / scale, rel=1e-2 if mode == "O3" else 1e-5)


def test_bad_gradient_of_another_process_skips_this_one_too():
    reduction = Recording(other_found_inf=True)
    precision = amp.build_precision("auto", dtype="float16", reduction=reduction)
    model, optimizer = build(precision)
    before = bits(dict(precision.master_params(model)))
    precision.backward(forward(precision, model, *batch()))
    result = precision.step(optimizer)
    assert (result.applied, result.first_bad) == (False, None)
    assert reduction.calls == ["found_inf"]  # no process may wait in a collective that the others never enter
    assert precision.loss_scale == 2.0**15
    assert bits(dict(precision.master_params(model))) == before


@pytest.mark.parametrize(
    "optimizer", ["SGD", "Momentum", "Adam", "AdamW", "Adagrad", "RMSProp", "Adamax", "Lamb", "NAdam"]
)
@pytest.mark.parametrize("mode", ["O2", "naive"])
def test_any_optimizer_updates_float32_masters(mode, optimizer):
    precision = amp.build_precision(mode, dtype="bfloat16")
    model = precision.convert_model(network())
    named = precision.master_params(model)
    arguments = {"learning_rate": 0.01, "parameters": [param for _, param in named]}
    made = getattr(paddle.optimizer, optimizer)(**arguments)
    before = bits(dict(named))
    train(precision, model, made)
    assert all(param.dtype == paddle.float32 for _, param in named)
    assert all(bits({name: param})[name] != before[name] for name, param in named)
    state = [tensor for tensor in made.state_dict().values() if isinstance(tensor, paddle.Tensor)]
    assert all(tensor.dtype in (paddle.float32, paddle.int64) for tensor in state)


@pytest.mark.parametrize("optimizer", ["SGD", "Momentum", "AdamW", "Lamb"])
def test_level_3_updates_the_half_weights_themselves(optimizer):
    precision = amp.build_precision("O3")
    model = precision.convert_model(network())
    named = precision.master_params(model)
    assert {str(param.dtype) for _, param in named} == {"paddle.float16"}
    assert all(param is dict(model.named_parameters())[name] for name, param in named)
    made = getattr(paddle.optimizer, optimizer)(0.01, parameters=[param for _, param in named])
    before = bits(dict(named))
    losses = train(precision, model, made, steps=10)
    assert losses[-1] < losses[0]
    assert all(bits({name: param})[name] != before[name] for name, param in named)


def test_parameter_groups_keep_their_own_learning_rate():
    precision = amp.build_precision("O2", options={"loss_scale": 64.0})
    model = precision.convert_model(network())
    named = dict(precision.master_params(model))
    frozen, moving = named.pop("7.weight"), list(named.values())
    groups = [{"params": moving, "learning_rate": 1.0}, {"params": [frozen], "learning_rate": 0.0}]
    optimizer = paddle.optimizer.AdamW(0.01, parameters=groups, weight_decay=0.0)
    before = frozen.numpy().copy()
    train(precision, model, optimizer)
    np.testing.assert_array_equal(frozen.numpy(), before)
    assert not np.array_equal(named["7.bias"].numpy(), network()[7].bias.numpy())


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_two_runs_are_bitwise_equal(mode, dtype):
    runs = []
    for _ in range(2):
        precision = amp.build_precision(mode, dtype=dtype)
        model, optimizer = build(precision)
        runs.append((train(precision, model, optimizer, steps=4), bits(model.state_dict())))
    assert runs[0] == runs[1]


# The illegal ones, O1 with keep_batchnorm_fp32, and their error are tested with the options.
LEGAL = [
    combination
    for combination in itertools.product(LEVELS, [None, 1.0, 128.0, "dynamic"], [None, True, False])
    if combination[0] != "O1" or combination[2] is None
]


@pytest.mark.parametrize(("level", "loss_scale", "keep_batchnorm"), LEGAL)
def test_legal_combinations_of_apex_train_and_repeat_bit_by_bit(level, loss_scale, keep_batchnorm):
    runs = []
    for _ in range(2):
        options = {"loss_scale": loss_scale, "keep_batchnorm_fp32": keep_batchnorm}
        precision = amp.build_precision(level, options=options)
        model, optimizer = build(precision, "Momentum")
        runs.append((train(precision, model, optimizer, steps=4), bits(model.state_dict())))
    assert runs[0] == runs[1]
    assert runs[0][0][-1] < runs[0][0][0]


@pytest.mark.parametrize(("mode", "dtype"), [("auto", "float16"), ("O2", "float16"), ("naive", "float16")])
@pytest.mark.parametrize("cut", [1, 3])
def test_resuming_at_any_step_repeats_the_uninterrupted_run(mode, dtype, cut):
    """The scale grows and backs off during these steps: every count of the scaler matters."""
    options = {"init_scale": 2.0**20, "growth_interval": 2, "max_scale": 2.0**24}

    def start():
        precision = amp.build_precision(mode, dtype=dtype, options=options)
        with paddle.utils.unique_name.guard():  # Paddle finds the optimizer's state by the parameters' own names
            return precision, *build(precision)

    whole, model, optimizer = start()
    train(whole, model, optimizer, steps=6)
    expected = bits(whole.model_state_dict(model)), whole.state_dict()

    first, model, optimizer = start()
    train(first, model, optimizer, steps=cut)
    saved = first.state_dict(), {k: v.clone() for k, v in first.model_state_dict(model).items()}, optimizer.state_dict()
    again, model, optimizer = start()
    again.load_state_dict(saved[0])
    assert again.load_model_state_dict(model, saved[1]) == ([], [])
    optimizer.set_state_dict(saved[2])
    train(again, model, optimizer, steps=6 - cut)
    assert (bits(again.model_state_dict(model)), again.state_dict()) == expected


def test_loading_a_state_without_scaler_keeps_the_start():
    precision = amp.build_precision("auto", dtype="float16")
    precision.load_state_dict(amp.build_precision("fp32").state_dict())
    assert precision.loss_scale == 2.0**16
    amp.build_precision("fp32").load_state_dict(precision.state_dict())


def test_loading_another_modes_state_keeps_its_scale(caplog):
    naive = amp.build_precision("naive", options={"init_scale": 2.0**12})
    auto = amp.build_precision("auto", dtype="float16")
    with caplog.at_level("WARNING"):
        auto.load_state_dict(naive.state_dict())
    assert auto.loss_scale == 2.0**12
    assert "taken from a naive scaler" in caplog.text


def test_foreign_state_is_refused():
    with pytest.raises(ValueError, match="unexpected key 'optimizer'"):
        amp.build_precision("auto").load_state_dict({"optimizer": 1})


def test_frozen_parameters_take_no_part():
    precision = amp.build_precision("O2", options={"loss_scale": 8.0})
    model = network()
    model[7].weight.stop_gradient = True
    before = bits(model.state_dict())["7.weight"]
    model = precision.convert_model(model)
    assert "7.weight" not in dict(precision.master_params(model))
    assert model[7].weight.dtype == paddle.float16
    optimizer = paddle.optimizer.SGD(0.1, parameters=[param for _, param in precision.master_params(model)])
    train(precision, model, optimizer)
    assert bits(precision.model_state_dict(model))["7.weight"] == before  # float32, not the rounded half


def test_negative_clip_norm_is_refused():
    with pytest.raises(ValueError, match="clip_grad_norm"):
        amp.build_precision("fp32", clip_grad_norm=-1.0)


def test_squared_norm_tells_large_finite_gradients_from_infinite_ones():
    large = paddle.full([8], 1e30)
    assert squared_norm([large]) == pytest.approx(8e60)
    assert math.isinf(squared_norm([large, paddle.to_tensor([float("inf")])]))
    assert math.isnan(squared_norm([large, paddle.to_tensor([float("nan")])]))
    assert not math.isfinite(squared_norm([paddle.to_tensor([float("nan")]), paddle.to_tensor([float("-inf")]), large]))
    assert squared_norm([]) == 0.0
    assert squared_norm([paddle.full([4], 60000.0, "float16")]) == pytest.approx(4 * 60000.0**2, rel=1e-3)


def test_first_non_finite_names_the_first_of_several():
    params = []
    for name, value in (("a", 1.0), ("b", float("nan")), ("c", float("inf"))):
        param = paddle.create_parameter([2], "float32")
        param.grad = paddle.full([2], value)
        params.append((name, param))
    assert first_non_finite(params) == "b"
    assert first_non_finite(params[:1]) is None


def test_multiply_rounds_half_gradients_once():
    gradient = paddle.to_tensor([3.0, 65504.0]).astype("float16")
    multiply([gradient], 1 / 3)
    np.testing.assert_array_equal(gradient.numpy(), (np.float32([3.0, 65504.0]) * np.float32(1 / 3)).astype("float16"))


def test_half_loss_is_scaled_in_float32():
    """A float16 loss of 4 times 65536 would be infinite, and its gradient with it."""
    precision = amp.build_precision("O3", options={"loss_scale": 2.0**16})
    loss = paddle.to_tensor([4.0], "float16", stop_gradient=False)
    scaled = precision.scaled(loss)
    assert (scaled.dtype, scaled.item()) == (paddle.float32, 2.0**18)


def test_count_zeros_counts_exact_zeros_only():
    assert count_zeros([paddle.to_tensor([0.0, 1e-30, -0.0]), paddle.zeros([2, 2], "float16")]) == 6


def test_long_resume_of_static_scale_is_plain_data():
    state = amp.build_precision("O3").state_dict()
    assert state["mode"] == "O3"
    assert all(isinstance(value, (str, float, int, bool)) for value in state["loss_scaler0"].values())
