"""Optimizers against NumPy implementations in float64, parameter groups, and the state by structured names."""

import contextlib
import dataclasses
import itertools

import numpy as np
import paddle
import pytest

from image_classification import half_cpu
from image_classification.config import Config
from image_classification.config.schema import OPTIMIZERS
from image_classification.optim import build_optimizer, load_optimizer_state, optimizer_state
from image_classification.optim.rules import lamb_descend, lamb_direction, norms
from image_classification.runtime import UserError

SHAPES = {"pos_embed": (1, 2, 3), "blocks.0.fc.weight": (3, 4), "blocks.0.fc.bias": (4,), "head.weight": (4, 2)}
LAYERS = [("pos_embed",), ("blocks.0.",), ("head.",)]
DECAYED = ("blocks.0.fc.weight", "head.weight")
RULES = list(OPTIMIZERS)


def train(name, weight_decay=0.1, **options):
    """Return a TRAIN section with the given optimizer."""
    section = Config().TRAIN
    optimizer = dataclasses.replace(section.OPTIMIZER, NAME=name, **options)
    return dataclasses.replace(section, WEIGHT_DECAY=weight_decay, OPTIMIZER=optimizer)


def named_tensors(seed=0, frozen=()):
    """Return [(name, tensor)] as the precision's masters are: plain float32 tensors."""
    rng = np.random.default_rng(seed)
    return [
        (name, paddle.to_tensor(rng.normal(size=shape).astype("float32"), stop_gradient=name in frozen))
        for name, shape in SHAPES.items()
    ]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}


def run(optimizer, named, steps, first=0):
    """Take ``steps`` steps with given gradients and a learning rate that changes at each."""
    for step in range(first, first + steps):
        for name, tensor in named:
            tensor.grad = paddle.to_tensor(gradients(step)[name])
        optimizer.set_lr(rate(step))
        optimizer.step()
        optimizer.clear_grad()


def rate(step):
    return 0.1 / (1 + step)


def reference(update, steps=5, decayed=DECAYED, weight_decay=0.1):
    """Return the weights after ``steps`` calls of update(w, g, lr, wd, step, slots), all in float64."""
    weights = {}
    for name, tensor in named_tensors():
        w, slots = tensor.numpy().astype("float64"), {}
        for step in range(steps):
            g = gradients(step)[name].astype("float64")
            w = update(w, g, rate(step), weight_decay if name in decayed else 0.0, step + 1, slots)
        weights[name] = w
    return weights


def sgd(w, g, lr, wd, step, slots):
    return w - lr * (g + wd * w)


def momentum(w, g, lr, wd, step, slots):
    slots["v"] = 0.8 * slots.get("v", 0.0) + g + wd * w
    return w - lr * slots["v"]


def nesterov(w, g, lr, wd, step, slots):
    slots["v"] = 0.9 * slots.get("v", 0.0) + g + wd * w
    return w - lr * (g + wd * w + 0.9 * slots["v"])


def adamw(w, g, lr, wd, step, slots):
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.99 * slots.get("v", 0.0) + 0.01 * g * g
    m, v = slots["m"] / (1 - 0.9**step), slots["v"] / (1 - 0.99**step)
    return w - lr * wd * w - lr * m / (np.sqrt(v) + 0.01)


def adam(w, g, lr, wd, step, slots):
    return adamw(w, g + wd * w, lr, 0.0, step, slots)


def rmsprop(w, g, lr, wd, step, slots):
    """Hinton's rule with TensorFlow's momentum: epsilon under the root."""
    g = g + wd * w
    slots["s"] = 0.95 * slots.get("s", 0.0) + 0.05 * g * g
    slots["v"] = 0.8 * slots.get("v", 0.0) + lr * g / np.sqrt(slots["s"] + 0.01)
    return w - slots["v"]


def lamb(bias_correction, clip=np.inf, always_adapt=False):
    def update(w, g, lr, wd, step, slots):
        slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
        slots["v"] = 0.99 * slots.get("v", 0.0) + 0.01 * g * g
        m, v = slots["m"], slots["v"]
        if bias_correction:
            m, v = m / (1 - 0.9**step), v / (1 - 0.99**step)
        u = m / (np.sqrt(v) + 1e-6) + wd * w
        trust = min(np.linalg.norm(w) / np.linalg.norm(u), clip) if wd or always_adapt else 1.0
        return w - lr * trust * u

    return update


def lars(coefficient, always_adapt=False):
    def update(w, g, lr, wd, step, slots):
        norm = np.linalg.norm(w)
        trust = coefficient * norm / (np.linalg.norm(g) + wd * norm) if wd or always_adapt else 1.0
        slots["v"] = 0.9 * slots.get("v", 0.0) + lr * trust * (g + wd * w)
        return w - slots["v"]

    return update


def lion(w, g, lr, wd, step, slots):
    m = slots.get("m", np.zeros_like(w))
    slots["m"] = 0.99 * m + 0.01 * g
    return w - lr * (np.sign(0.9 * m + 0.1 * g) + wd * w)


@pytest.mark.parametrize(
    ("name", "options", "update"),
    [
        ("LAMB", {}, lamb(True)),
        ("LAMB", {"BIAS_CORRECTION": False}, lamb(False)),
        ("LAMB", {"TRUST_CLIP": 0.8}, lamb(True, clip=0.8)),
        ("LAMB", {"BIAS_CORRECTION": False, "ALWAYS_ADAPT": True}, lamb(False, always_adapt=True)),
        ("LARS", {"TRUST_COEFFICIENT": 0.02}, lars(0.02)),
        ("LARS", {"TRUST_COEFFICIENT": 0.02, "ALWAYS_ADAPT": True}, lars(0.02, always_adapt=True)),
        ("Lion", {}, lion),
    ],
)
@pytest.mark.parametrize("context", [contextlib.nullcontext, half_cpu.dispatch])
def test_own_rules_equal_the_published_ones_to_1e_6(context, name, options, update):
    named = named_tensors()
    section = train(name, BETAS=(0.9, 0.99), EPS=1e-6, **options)
    with context():
        run(build_optimizer(named, section, {"pos_embed"}), named, steps=5)
    for key, expected in reference(update).items():
        np.testing.assert_allclose(dict(named)[key].numpy(), expected, rtol=0, atol=1e-6, err_msg=key)


def test_lamb_with_decay_on_all_tensors_is_the_rule_without_exclusions():
    named = named_tensors()
    section = train("LAMB", BETAS=(0.9, 0.99), EPS=1e-6, BIAS_CORRECTION=False, DECAY_ALL=True)
    run(build_optimizer(named, section, {"pos_embed"}), named, steps=5)
    for key, expected in reference(lamb(False), decayed=SHAPES).items():
        np.testing.assert_allclose(dict(named)[key].numpy(), expected, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize(("adapts", "clip"), [(False, None), (True, None), (True, 0.3)])
@pytest.mark.parametrize("count", [7, 40007])
def test_one_pass_of_lamb_is_what_its_operators_compute(count, adapts, clip, corrects):
    """Same float32 arithmetic, fused multiply-adds and the order of sums aside; betas whose difference from 1 float32
    would round off."""
    results = []
    for context in (contextlib.nullcontext, half_cpu.dispatch):
        paddle.seed(0)
        weights, grad, average, square = (paddle.randn([count]) for _ in range(4))
        square, powers = square * square, [paddle.full([1], value, "float64") for value in (0.9, 0.999)]
        state, version = (average, square, *powers), weights.inplace_version
        with context():
            # without an epsilon, what a vector holds beyond the last number is 0 / 0
            options = (0.9, 0.999), 0.0 if count < 8 else 1e-6, corrects, 0.1, adapts
            direction, squares = lamb_direction(weights, grad, *state, *options)
            lamb_descend(weights, paddle.to_tensor(0.5), direction, squares, clip)
        assert weights.inplace_version > version
        assert (squares is not None) == adapts
        results.append([tensor.numpy() for tensor in (*state, direction, weights, *([squares] if adapts else []))])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    for expected, actual in zip(results[0][2:4], results[1][2:4], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_powers_of_another_format_are_left_to_the_operators():
    results = []
    for context in (contextlib.nullcontext, half_cpu.dispatch):
        powers = [paddle.full([1], value) for value in (0.9, 0.999)]  # float32
        state = *(paddle.zeros([5]) for _ in range(2)), *powers
        with context():
            direction, _ = lamb_direction(
                paddle.ones([5]), paddle.ones([5]), *state, (0.9, 0.999), 1e-6, True, 0.1, True
            )
        results.append([tensor.numpy() for tensor in (direction, *powers)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_norm_of_millions_of_numbers_is_exact():
    # paddle.linalg.norm is 1.4 % off here
    for length in norms(paddle.full([3000, 1000], 1e-3), paddle.full([3000, 1000], -1e-3)):
        assert length.item() == pytest.approx(3e6**0.5 * 1e-3, rel=1e-6)


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_trust_ratio_of_zero_weights_or_zero_gradients_is_one(name):
    named = [("zeros", paddle.zeros([3, 2])), ("ones", paddle.ones([3, 2]))]
    for _, tensor in named:
        tensor.stop_gradient = False
    optimizer = build_optimizer(named, train(name, weight_decay=0.0, ALWAYS_ADAPT=True, EPS=1e-8))
    named[0][1].grad, named[1][1].grad = paddle.full([3, 2], 2.0), paddle.zeros([3, 2])
    optimizer.set_lr(0.5)
    optimizer.step()
    moved = -0.5 if name == "LAMB" else -1.0  # the sign of the gradient, or the gradient itself
    np.testing.assert_allclose(named[0][1].numpy(), np.full((3, 2), moved), rtol=1e-6)
    np.testing.assert_array_equal(named[1][1].numpy(), np.ones((3, 2)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["LAMB", "LARS", "Lion"])
def test_own_rules_step_half_weights_as_float32_and_round_once(name, dtype):
    half = [(key, tensor.astype(dtype).detach()) for key, tensor in named_tensors()]
    full = [(key, tensor.astype("float32")) for key, tensor in half]
    for _, tensor in half + full:
        tensor.stop_gradient = False
    run(build_optimizer(full, train(name)), full, steps=1)
    optimizer = build_optimizer(half, train(name))
    for key, tensor in half:
        tensor.grad = paddle.to_tensor(gradients(0)[key])
    optimizer.set_lr(rate(0))
    optimizer.step()
    for (key, one), (_, other) in zip(half, full, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.astype(dtype).numpy(), err_msg=key)
    assert all(value.dtype != one.dtype for value in optimizer_state(optimizer, half).values())


@pytest.mark.parametrize("name", ["LAMB", "LARS", "Lion"])
def test_own_rules_change_the_weights_in_place(name):
    named = named_tensors()
    places = [tensor.data_ptr() for _, tensor in named]
    run(build_optimizer(named, train(name)), named, steps=2)
    assert [tensor.data_ptr() for _, tensor in named] == places
    assert all(tensor.is_leaf and not tensor.stop_gradient for _, tensor in named)


@pytest.mark.parametrize(
    ("name", "options", "update"),
    [
        ("SGD", {}, sgd),
        ("Momentum", {"MOMENTUM": 0.8}, momentum),
        ("Momentum", {"NESTEROV": True}, nesterov),
        ("AdamW", {"BETAS": (0.9, 0.99), "EPS": 0.01}, adamw),
        ("Adam", {"BETAS": (0.9, 0.99), "EPS": 0.01}, adam),
        ("RMSProp", {"RHO": 0.95, "MOMENTUM": 0.8, "EPS": 0.01}, rmsprop),
    ],
)
def test_five_steps_equal_the_published_rule(name, options, update):
    named = named_tensors()
    run(build_optimizer(named, train(name, **options), {"pos_embed"}), named, steps=5)
    for key, expected in reference(update).items():
        # float32 against float64; Paddle keeps the powers of the betas in float32, 3e-6 after five steps
        np.testing.assert_allclose(dict(named)[key].numpy(), expected, rtol=1e-5, atol=5e-6, err_msg=key)


@pytest.mark.parametrize("name", RULES)
def test_biases_norms_and_exempted_names_have_no_weight_decay(name):
    decayed = weights_that_decay(name, {"pos_embed"})
    assert decayed == set(DECAYED)


@pytest.mark.parametrize("name", RULES)
def test_decay_all_decays_every_tensor(name):
    assert weights_that_decay(name, {"pos_embed"}, DECAY_ALL=True) == set(SHAPES)


def weights_that_decay(name, no_weight_decay, **options):
    """Return the names whose weights move on a zero gradient."""
    named = named_tensors()
    before = {key: tensor.numpy() for key, tensor in named}
    optimizer = build_optimizer(named, train(name, **options), no_weight_decay)
    for _, tensor in named:
        tensor.grad = paddle.zeros_like(tensor)
    optimizer.set_lr(0.5)
    optimizer.step()
    return {key for key, tensor in named if not np.array_equal(tensor.numpy(), before[key])}


def test_second_optimizer_does_not_keep_the_settings_of_the_first():
    named, fresh = named_tensors(), named_tensors()
    build_optimizer(named, train("Momentum", LAYER_DECAY=0.5), layer_groups=LAYERS)
    run(build_optimizer(named, train("SGD", weight_decay=0.0)), named, steps=2)
    run(build_optimizer(fresh, train("SGD", weight_decay=0.0)), fresh, steps=2)
    for (key, one), (_, other) in zip(named, fresh, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=key)
    assert all(tensor.regularizer is None for _, tensor in named)  # which ZeRO refuses


@pytest.mark.parametrize("name", RULES)
def test_layer_decay_scales_the_rate_of_each_layer(name):
    plain, scaled = named_tensors(), named_tensors()
    before = {key: tensor.numpy().astype("float64") for key, tensor in plain}
    run(build_optimizer(plain, train(name)), plain, steps=1)
    run(build_optimizer(scaled, train(name, LAYER_DECAY=0.5), layer_groups=LAYERS), scaled, steps=1)
    factors = {"pos_embed": 0.25, "blocks.0.fc.weight": 0.5, "blocks.0.fc.bias": 0.5, "head.weight": 1.0}
    for (key, one), (_, other) in zip(plain, scaled, strict=True):
        expected = (one.numpy() - before[key]) * factors[key]
        np.testing.assert_allclose(other.numpy() - before[key], expected, atol=2e-7, err_msg=key)  # two ulp of weights


@pytest.mark.parametrize("groups", [[], LAYERS[1:], [*LAYERS, ("pos_",)]])
def test_layer_decay_names_the_parameter_whose_layer_the_model_does_not_say(groups):
    with pytest.raises(UserError, match="LAYER_DECAY: the model does not say which layer pos_embed belongs to"):
        build_optimizer(named_tensors(), train("SGD", LAYER_DECAY=0.9), layer_groups=groups)


def test_frozen_tensors_stay_and_have_no_state():
    named = named_tensors(frozen={"pos_embed"})
    before = named[0][1].numpy()
    optimizer = build_optimizer(named, train("AdamW", DECAY_ALL=True))
    run(optimizer, named[1:], steps=1)
    np.testing.assert_array_equal(named[0][1].numpy(), before)
    assert not any(key.startswith("pos_embed/") for key in optimizer_state(optimizer, named))


def test_all_tensors_frozen_is_an_error():
    with pytest.raises(UserError, match="frozen"):
        build_optimizer(named_tensors(frozen=set(SHAPES)), train("SGD"))


@pytest.mark.parametrize("name", RULES)
def test_resumed_optimizer_continues_bit_for_bit(name):
    straight = named_tensors()
    run(build_optimizer(straight, train(name), {"pos_embed"}), straight, steps=7)

    first = named_tensors()
    optimizer = build_optimizer(first, train(name), {"pos_embed"})
    run(optimizer, first, steps=3)
    saved = {key: value.numpy().copy() for key, value in optimizer_state(optimizer, first).items()}
    second = [(key, paddle.to_tensor(tensor.numpy(), stop_gradient=False)) for key, tensor in first]
    resumed = build_optimizer(second, train(name), {"pos_embed"})
    load_optimizer_state(resumed, second, saved)
    run(resumed, second, steps=4, first=3)

    for (key, one), (_, other) in zip(straight, second, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=key)
    ends = optimizer_state(resumed, second)
    assert set(ends) == set(saved)


def test_state_loaded_over_a_used_optimizer_replaces_it():
    named = named_tensors()
    optimizer = build_optimizer(named, train("AdamW"))
    fresh = {key: value.numpy().copy() for key, value in optimizer_state(optimizer, named).items()}
    run(optimizer, named, steps=2)
    assert not np.array_equal(optimizer_state(optimizer, named)["head.weight/moment1"].numpy(), np.zeros((4, 2)))
    load_optimizer_state(optimizer, named, fresh)
    for key, value in optimizer_state(optimizer, named).items():
        np.testing.assert_array_equal(value.numpy(), fresh[key], err_msg=key)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_state_of_half_weights_is_float32_and_comes_back_bit_for_bit(dtype):
    named = [(key, tensor.astype(dtype).detach()) for key, tensor in named_tensors()]
    for _, tensor in named:
        tensor.stop_gradient = False
    optimizer = build_optimizer(named, train("Momentum"))
    state = optimizer_state(optimizer, named)
    assert {value.dtype for value in state.values()} == {paddle.float32}
    rng = np.random.default_rng(0)
    saved = {  # what half precision can hold
        key: paddle.to_tensor(rng.normal(size=value.shape).astype("f4")).astype(dtype).astype("float32").numpy()
        for key, value in state.items()
    }
    load_optimizer_state(optimizer, named, saved)
    for key, value in optimizer_state(optimizer, named).items():
        np.testing.assert_array_equal(value.numpy(), saved[key], err_msg=key)


def test_state_names_are_the_models_and_complete_before_the_first_step():
    named = named_tensors()
    keys = set(optimizer_state(build_optimizer(named, train("AdamW")), named))
    slots = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    assert keys == {f"{name}/{slot}" for name in SHAPES for slot in slots}


def test_state_of_another_frozen_part_names_the_key_that_froze_it():
    named = named_tensors()
    optimizer = build_optimizer(named, train("AdamW"))
    part = {key: value for key, value in optimizer_state(optimizer, named).items() if key.startswith("head.")}
    with pytest.raises(UserError, match=r"entries are missing, .*was it saved with .*TRAIN\.FREEZE"):
        load_optimizer_state(optimizer, named, part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.weight/moment2"), "1 entries are missing, first 'head.weight/moment2'"),
        (lambda state: state.update({"tail/moment1": np.zeros(1)}), "1 entries are unknown, first 'tail/moment1'"),
        (lambda state: state.update({"head.weight/moment1": np.zeros((4, 3), "f4")}), r"float32 \[4, 3\], expected"),
        (lambda state: state.update({"head.weight/moment1": np.zeros((4, 2))}), r"float64 \[4, 2\], expected float32"),
    ],
)
def test_state_that_does_not_fit_is_an_error_and_changes_nothing(change, message):
    named = named_tensors()
    optimizer = build_optimizer(named, train("AdamW"))
    run(optimizer, named, steps=1)
    before = {key: value.numpy().copy() for key, value in optimizer_state(optimizer, named).items()}
    state = {key: np.full_like(value, 7) for key, value in before.items()}
    change(state)
    with pytest.raises(UserError, match=message):
        load_optimizer_state(optimizer, named, state)
    for key, value in optimizer_state(optimizer, named).items():
        np.testing.assert_array_equal(value.numpy(), before[key], err_msg=key)


@pytest.mark.parametrize(("name", "other"), [
    pair for pair in itertools.permutations(RULES, 2) if {*pair} != {"AdamW", "Adam"}  # whose averages are the same
])  # fmt: skip
def test_state_of_another_rule_does_not_fit(name, other):
    """LARS's velocity has the rate in it: Momentum would take it for gradients, and the other way round."""
    named = named_tensors()
    state = optimizer_state(build_optimizer(named, train(name)), named)
    with pytest.raises(UserError, match="the optimizer's state does not fit"):
        load_optimizer_state(build_optimizer(named, train(other)), named, state)


def test_private_parts_of_paddle_that_state_and_rules_rely_on_exist():
    optimizer = paddle.optimizer.AdamW(parameters=[paddle.ones([2])])
    assert dict(optimizer._accumulators) == {}
    parts = ("_create_accumulators", "_add_accumulator", "_get_accumulator", "_create_param_lr", "_append_optimize_op")
    for part in parts:
        assert callable(getattr(optimizer, part)), part
