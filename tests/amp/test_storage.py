"""How half modes store a model: masters, norms, statistics, borders, and weights that are always saved in float32."""

import collections
from typing import NamedTuple

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp
from image_classification.amp.structures import cast_floating, floating_tensors
from tests.helpers.amp_models import MODES, batch, bits, build, forward, network, train

HALF_MODES = [(mode, dtype) for mode, dtype in MODES if mode in ("O2", "O3", "naive")]
BATCH_NORM = {"1.weight", "1.bias", "1._mean", "1._variance"}
OTHER_NORMS = {"3.weight", "3.bias", "6.weight", "6.bias"}  # group norm and layer norm


def stored(model):
    """Return the names of the float32 tensors in a model."""
    return {name for name, tensor in model.state_dict().items() if tensor.dtype == paddle.float32}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("mode", "options", "float32"),
    [
        ("auto", {}, set(network().state_dict())),
        ("O0", {}, set(network().state_dict())),
        ("O1", {}, set(network().state_dict())),
        ("O2", {}, BATCH_NORM),
        ("O2", {"keep_batchnorm_fp32": False}, set()),
        ("O3", {}, set()),
        ("O3", {"keep_batchnorm_fp32": True}, BATCH_NORM),
        ("naive", {}, BATCH_NORM | OTHER_NORMS),
        ("naive", {"keep_norms_fp32": False}, set()),
        ("naive", {"keep_float32": ["7"]}, BATCH_NORM | OTHER_NORMS | {"7.weight", "7.bias"}),
        ("O2", {"keep_float32": ["0", "7"]}, BATCH_NORM | {"0.weight", "7.weight", "7.bias"}),
    ],
)
def test_what_stays_float32_in_the_model(mode, options, float32, dtype):
    if mode == "naive":
        options = {**options, "init_scale": 256.0}  # the documented 2^32 skips the first seventeen steps
    precision = amp.build_precision(mode, dtype=None if mode == "O0" else dtype, options=options)
    model = precision.convert_model(network())
    assert stored(model) == float32
    kinds = {str(t.dtype) for name, t in model.state_dict().items() if name not in float32}
    assert kinds <= {f"paddle.{dtype}"}
    losses = train(precision, model, build_optimizer(precision, model), steps=6)
    assert losses[-1] < losses[0]


def build_optimizer(precision, model):
    return paddle.optimizer.Momentum(0.01, parameters=[param for _, param in precision.master_params(model)])


@pytest.mark.parametrize(("mode", "dtype"), [(mode, dtype) for mode, dtype in HALF_MODES if mode != "O3"])
def test_masters_are_the_float32_weights_before_rounding(mode, dtype):
    model = network()
    original = bits(dict(model.named_parameters()))
    precision = amp.build_precision(mode, dtype=dtype)
    model = precision.convert_model(model)
    for name, master in precision.master_params(model):
        assert bits({name: master})[name] == original[name]
        half = dict(model.named_parameters())[name]
        assert bits({name: half})[name] == bits({name: master.astype(half.dtype)})[name]


@pytest.mark.parametrize("optimizer", ["AdamW", "RMSProp"])  # with a kernel that writes both, and without
@pytest.mark.parametrize(("mode", "dtype"), [(mode, dtype) for mode, dtype in HALF_MODES if mode != "O3"])
def test_half_weights_are_the_rounded_masters_after_each_step(mode, dtype, optimizer):
    precision = amp.build_precision(mode, dtype=dtype, options={"init_scale": 64.0})
    model, optimizer = build(precision, optimizer)
    for _ in range(3):
        train(precision, model, optimizer, steps=1)
        weights = dict(model.named_parameters())
        for name, master in precision.master_params(model):
            assert bits({name: weights[name]})[name] == bits({name: master.astype(weights[name].dtype)})[name]


class Clipped(paddle.optimizer.AdamW):
    """Keeps the weights in a range, as critics and embeddings want."""

    @paddle.no_grad()
    def step(self):
        super().step()
        for param in self._parameter_list:
            param.set_value(param.clip(-0.05, 0.05))


def lookahead(parameters):
    return paddle.incubate.LookAhead(paddle.optimizer.AdamW(0.01, parameters=parameters), k=1)


def stepping_from_outside(parameters):
    optimizer = paddle.optimizer.AdamW(0.01, parameters=parameters)
    step = optimizer.step

    def clipped():
        step()
        with paddle.no_grad():
            for param in parameters:
                param.set_value(param.clip(-0.05, 0.05))

    optimizer.step = clipped
    return optimizer


@pytest.mark.parametrize("make", [lambda p: Clipped(0.01, parameters=p), lookahead, stepping_from_outside])
@pytest.mark.parametrize(("mode", "dtype"), [(mode, dtype) for mode, dtype in HALF_MODES if mode != "O3"])
def test_half_weights_follow_what_an_optimizer_writes_after_its_operator(mode, dtype, make):
    precision = amp.build_precision(mode, dtype=dtype, options={"init_scale": 64.0})
    model = precision.convert_model(network())
    masters = dict(precision.master_params(model))
    train(precision, model, make([*masters.values()]), steps=1)
    weights = dict(model.named_parameters())
    for name, master in masters.items():
        assert bits({name: weights[name]}) == bits({name: master.astype(weights[name].dtype)})


def test_masters_take_updates_that_half_weights_cannot_hold():
    """1 + 2^-14 rounds to 1 in float16; 16 such updates reach the next float16 number only through a master."""
    ends = {}
    for mode in ("O2", "O3"):
        model = nn.Linear(1, 1, bias_attr=False)
        model.weight.set_value(paddle.ones([1, 1]))
        precision = amp.build_precision(mode, options={"loss_scale": 1.0})
        model = precision.convert_model(model)
        optimizer = paddle.optimizer.SGD(2.0**-14, parameters=[p for _, p in precision.master_params(model)])
        for _ in range(16):
            with precision.forward_context():
                loss = -model(paddle.ones([1, 1])).sum()
            precision.backward(loss)
            precision.step(optimizer)
        ends[mode] = model.weight.astype("float32").item()
    assert ends == {"O2": 1.0 + 2.0**-10, "O3": 1.0}


def test_names_and_order_of_masters_are_the_models():
    precision = amp.build_precision("naive")
    model = precision.convert_model(network())
    names = [name for name, _ in network().named_parameters() if "_mean" not in name and "_variance" not in name]
    assert [name for name, _ in precision.master_params(model)] == names


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), *MODES])
def test_saved_weights_are_float32_under_the_plain_keys(mode, dtype):
    precision = amp.build_precision(mode, dtype=dtype)
    model, optimizer = build(precision)
    train(precision, model, optimizer)
    state = precision.model_state_dict(model)
    assert list(state) == list(network().state_dict())
    assert all(tensor.dtype == paddle.float32 for tensor in state.values())
    if mode != "O3":
        masters = dict(precision.master_params(model))
        assert all(bits({name: state[name]}) == bits({name: master}) for name, master in masters.items())


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), *MODES])
@pytest.mark.parametrize("kind", ["tensor", "numpy"])
def test_loading_weights_refreshes_masters_exactly(mode, dtype, kind):
    precision = amp.build_precision(mode, dtype=dtype)
    model, optimizer = build(precision)
    train(precision, model, optimizer)
    wanted = network(seed=11).state_dict()
    given = wanted if kind == "tensor" else {name: tensor.numpy() for name, tensor in wanted.items()}
    assert precision.load_model_state_dict(model, given) == ([], [])
    loaded = precision.model_state_dict(model)
    for name, tensor in wanted.items():
        stored_as = model.state_dict()[name].dtype
        # O3 has no float32 copy, and statistics in half models are half
        exact = (
            tensor if precision.master(model.state_dict()[name]).dtype == paddle.float32 else tensor.astype(stored_as)
        )
        assert bits({name: loaded[name]}) == bits({name: exact.astype("float32")})
        assert bits({name: model.state_dict()[name]}) == bits({name: tensor.astype(stored_as)})


@pytest.mark.parametrize("mode", ["fp32", "auto", "O2"])
def test_half_weights_of_a_file_can_be_loaded(mode):
    precision = amp.build_precision(mode)
    model = precision.convert_model(network())
    wanted = {name: tensor.astype("float16") for name, tensor in network(seed=11).state_dict().items()}
    assert precision.load_model_state_dict(model, wanted) == ([], [])
    loaded = precision.model_state_dict(model)
    assert all(bits({name: loaded[name]}) == bits({name: wanted[name].astype("float32")}) for name in wanted)


@pytest.mark.parametrize("mode", ["fp32", "O2"])
def test_loading_reports_missing_and_unexpected_keys(mode):
    precision = amp.build_precision(mode)
    model = precision.convert_model(network())
    state = network(seed=5).state_dict()
    del state["7.bias"]
    state["7.weight"] = paddle.zeros([2, 2])
    state["head.weight"] = paddle.zeros([1])
    missing, unexpected = precision.load_model_state_dict(model, state)
    assert (missing, unexpected) == (["7.weight", "7.bias"], ["head.weight"])


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_weights_travel_through_any_mode(mode, dtype):
    """fp32 -> mode -> fp32: what the first trained is what the last starts from, bit by bit (but for O3's rounding)."""
    first = amp.build_precision("fp32")
    model, optimizer = build(first)
    train(first, model, optimizer)
    state = {name: tensor.clone() for name, tensor in first.model_state_dict(model).items()}
    middle = amp.build_precision(mode, dtype=dtype, options={"keep_norms_fp32": True} if mode == "naive" else {})
    middle_model = middle.convert_model(network(seed=1))
    middle.load_model_state_dict(middle_model, state)
    last_model = first.convert_model(network(seed=2))
    first.load_model_state_dict(last_model, middle.model_state_dict(middle_model))
    same = bits(last_model.state_dict()) == bits(state)
    assert same == (mode != "O3")


@pytest.mark.parametrize("mode", ["O2", "O3", "naive"])
def test_model_works_inside_data_parallel_wrapper_names(mode):
    """A wrapper that forwards state_dict, as paddle.DataParallel does, gets the same keys."""

    class Wrapper(nn.Layer):
        def __init__(self, layers):
            super().__init__()
            self._layers = layers

        def state_dict(self):
            return self._layers.state_dict()

    precision = amp.build_precision(mode)
    wrapped = Wrapper(precision.convert_model(network()))
    assert list(precision.model_state_dict(wrapped)) == list(network().state_dict())


def test_shared_weights_stay_shared():
    class Tied(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight

    precision = amp.build_precision("O2")
    model = precision.convert_model(Tied())
    assert model.first.weight is model.second.weight
    assert len(precision.master_params(model)) == 3


def test_recurrent_layers_compute_with_their_half_weights():
    """They hold their weights a second time in a list of their own."""
    precision = amp.build_precision("O2", options={"loss_scale": 16.0})
    model = precision.convert_model(nn.LSTM(4, 5))
    optimizer = paddle.optimizer.SGD(0.5, parameters=[param for _, param in precision.master_params(model)])
    before = [weight.numpy().copy() for weight in model.parameters()]
    with precision.forward_context():
        outputs, (hidden, cell) = model(paddle.ones([2, 3, 4]))
        precision.backward(outputs.sum())
    assert {outputs.dtype, hidden.dtype, cell.dtype} == {paddle.float32}
    assert precision.step(optimizer).applied
    assert all(not np.array_equal(old, new.numpy()) for old, new in zip(before, model.parameters(), strict=True))
    with precision.forward_context():
        again, _ = model(paddle.ones([2, 3, 4]))
    assert not np.array_equal(outputs.numpy(), again.numpy())


def test_half_model_is_refused():
    model = network()
    model[7].to(dtype="float16")
    with pytest.raises(ValueError, match="'7.weight' is paddle.float16 already"):
        amp.build_precision("O2").convert_model(model)


def test_unknown_layer_to_keep_is_refused():
    with pytest.raises(ValueError, match="the model has no layer 'head'"):
        amp.build_precision("O2", options={"keep_float32": ["head"]}).convert_model(network())


@pytest.mark.parametrize(("mode", "dtype"), [("auto", "float16"), ("O1", "float16"), *HALF_MODES])
def test_kept_layer_computes_in_float32(mode, dtype):
    seen = {}
    precision = amp.build_precision(mode, dtype=dtype, options={"keep_float32": ["7"]})
    model = network()
    model = precision.convert_model(model)
    model[7].register_forward_pre_hook(lambda layer, inputs: seen.update(inputs=inputs[0].dtype))
    # registered after amp's own hooks, so it sees what the layer gets; 0.1 has no exact half
    model[7].weight.set_value(paddle.full([32, 5], 0.1))
    with precision.forward_context():
        model[7].bias.set_value(paddle.zeros([5]))
        outputs = model[7](paddle.full([1, 32], 1.0).astype(dtype))
    assert seen["inputs"] == paddle.float32
    exact = paddle.nn.functional.linear(paddle.ones([1, 32]), paddle.full([32, 5], 0.1))
    assert bits({"x": outputs.astype("float32")}) == bits({"x": exact.astype(outputs.dtype).astype("float32")})


@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "naive"])
def test_values_beyond_float16_pass_from_one_kept_layer_to_the_next(mode):
    """The first layer returns 1e6, inf in float16; the second brings it back into range before a half layer gets it."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.Linear(1, 1))
    for layer, value in zip((model[0], model[2], model[3]), (1e6, 1e-6, 1.0), strict=True):
        layer.weight.set_value(paddle.full([1, 1], value))
    precision = amp.build_precision(mode, dtype="float16", options={"keep_float32": ["0", "2"]})
    model = precision.convert_model(model)
    with precision.forward_context():
        assert model(paddle.ones([1, 1])).item() == pytest.approx(1.0, rel=1e-3)


def test_norm_inside_a_kept_block_returns_float32():
    model = nn.Sequential(nn.Sequential(nn.Conv2D(3, 4, 1), nn.GroupNorm(2, 4)), nn.Conv2D(4, 4, 1))
    precision = amp.build_precision("naive", options={"keep_float32": ["0"]})
    model = precision.convert_model(model)
    with precision.forward_context():
        assert model[0](batch()[0]).dtype == paddle.float32
        assert model[1](model[0](batch()[0])).dtype == paddle.float16


@pytest.mark.parametrize("container", [nn.Sequential, nn.LayerList, lambda *layers: nn.LayerDict({"a": layers[0]})])
@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "naive"])
def test_layers_of_a_kept_container_that_a_model_runs_one_by_one_compute_in_float32(mode, container):
    layers = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))
    model = nn.LayerDict({"blocks": container(layers) if container is nn.LayerList else container(*layers)})
    precision = amp.build_precision(mode, dtype="float16", options={"keep_float32": ["blocks"]})
    precision.convert_model(model)
    x = paddle.ones([1, 3])
    with precision.forward_context():
        for layer in [layer for layer in model.sublayers() if isinstance(layer, nn.Linear)]:
            x = layer(x.astype("float16"))
            assert x.dtype == paddle.float32


@pytest.mark.parametrize("mode", ["auto", "O1"])
def test_kept_layer_that_raises_leaves_the_casts_on(mode):
    precision = amp.build_precision(mode, dtype="float16", options={"keep_float32": ["7"]})
    model = precision.convert_model(network())
    x, weight = paddle.ones([2, 4]), paddle.ones([4, 2])
    with precision.forward_context():
        with pytest.raises(ValueError):
            model[7](paddle.ones([1, 3]))
        assert paddle.matmul(x, weight).dtype == paddle.float16
    assert paddle.matmul(x, weight).dtype == paddle.float32


class Pair(NamedTuple):
    image: paddle.Tensor
    label: paddle.Tensor


class Everything(nn.Layer):
    """Takes and returns every kind of container and notes the dtypes inside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.seen = None

    def forward(self, x, pair, *, options):
        self.seen = [str(tensor.dtype).removeprefix("paddle.") for tensor in (x, *pair, *options["list"])]
        y = self.linear(x)
        return {"y": y, "nested": [(y, pair), Pair(y, pair.label)], "name": "unchanged", "none": None}


@pytest.mark.parametrize(("mode", "dtype"), HALF_MODES)
def test_inputs_and_outputs_are_cast_inside_nested_containers(mode, dtype):
    precision = amp.build_precision(mode, dtype=dtype)
    model = precision.convert_model(Everything())
    x, label = paddle.ones([1, 2]), paddle.ones([1], "int64")
    with precision.forward_context():
        out = model(x, Pair(x, label), options={"list": [x, (x)]})
    assert model.seen == [dtype, dtype, "int64", dtype, dtype]
    assert {tensor.dtype for tensor in floating_tensors(out)} == {paddle.float32}
    assert isinstance(out["nested"][0][1], Pair)
    assert out["nested"][1].label is label
    assert (out["name"], out["none"]) == ("unchanged", None)


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("O0", {}, "float32"),
        ("O1", {}, "float16"),
        ("O1", {"cast_model_outputs": "float32"}, "float32"),
        ("O2", {}, "float32"),
        ("O2", {"cast_model_outputs": "float16"}, "float16"),
        ("O3", {"cast_model_outputs": "bfloat16"}, "bfloat16"),
        ("naive", {}, "float32"),
        ("naive", {"output_to_fp32": False}, "float16"),
    ],
)
def test_output_dtype(mode, options, expected):
    precision = amp.build_precision(mode, options=options)
    model = precision.convert_model(network())
    with precision.forward_context():
        assert model(batch()[0]).dtype == getattr(paddle, expected)


def test_level_0_accepts_half_inputs():
    precision = amp.build_precision("O0")
    model = precision.convert_model(network())
    with precision.forward_context():
        assert model(batch()[0].astype("float16")).dtype == paddle.float32


def test_cast_floating_keeps_containers_and_what_is_not_floating():
    default = collections.defaultdict(list, {"a": paddle.ones([1])})
    ordered = collections.OrderedDict(b=paddle.ones([1]), a=1)
    numbers = np.ones(2, "float32")
    value = [default, ordered, (1, "text", numbers), {"double": paddle.ones([1], "float64")}]
    cast = cast_floating(value, "bfloat16")
    assert type(cast[0]) is collections.defaultdict
    assert cast[0].default_factory is list
    assert cast[0]["a"].dtype == cast[1]["b"].dtype == paddle.bfloat16
    assert list(cast[1]) == ["b", "a"]
    assert cast[2] is value[2]
    assert cast[3] is value[3]
    assert default["a"].dtype == paddle.float32  # the caller's container is not written to


def test_casts_at_the_border_are_differentiable():
    x = paddle.ones([2, 3], "float32")
    x.stop_gradient = False
    (cast_floating({"x": [x]}, "float16")["x"][0].astype("float32") * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full([2, 3], 3.0))


HALF_NORMS = [("O2", "float16", {"keep_batchnorm_fp32": False}), ("naive", "bfloat16", {"keep_norms_fp32": False})]


@pytest.mark.parametrize(
    ("mode", "dtype", "options"), [("fp32", None, {}), *[(*mode, {}) for mode in MODES], *HALF_NORMS]
)
def test_running_statistics_move_in_training_and_stay_in_evaluation(mode, dtype, options):
    precision = amp.build_precision(mode, dtype=dtype, options=options)
    model = precision.convert_model(network())
    before = bits(precision.model_state_dict(model))["1._mean"]
    forward(precision, model, *batch())
    after = bits(precision.model_state_dict(model))["1._mean"]
    assert after != before
    model.eval()
    forward(precision, model, *batch())
    assert bits(precision.model_state_dict(model))["1._mean"] == after


@pytest.mark.parametrize("mode", ["O2", "naive"])
def test_hook_of_a_half_weight_sees_its_gradient_once(mode):
    precision = amp.build_precision(mode, "bfloat16")
    model = precision.convert_model(paddle.nn.Linear(3, 2))
    seen = []
    for param in model.parameters():
        param.register_hook(lambda gradient: seen.append(gradient.shape))
    with precision.forward_context():
        loss = model(paddle.ones([4, 3])).astype("float32").sum()
    precision.backward(loss)
    assert sorted(seen) == [[2], [3, 2]]


def test_gradients_of_half_weights_become_the_masters_without_a_second_copy():
    precision = amp.build_precision("O2", dtype="bfloat16", options={"loss_scale": 1.0})
    model = precision.convert_model(nn.Linear(512, 1024, bias_attr=False))
    ((_, master),) = precision.master_params(model)
    statistics = paddle.base.core
    for _ in range(2):  # the first call builds what is kept for others
        master.clear_gradient(False)
        with precision.forward_context():
            loss = model(paddle.ones([1, 512])).sum()
        loss.backward()
        gradient = model.weight.grad.astype("float32").numpy()
        before = statistics.host_memory_stat_current_value("Allocated", 0)
        statistics.host_memory_stat_reset_peak_value("Allocated", 0)
        precision.collect()
        peak = statistics.host_memory_stat_peak_value("Allocated", 0) - before
    assert model.weight.grad is None
    np.testing.assert_array_equal(master.grad.numpy(), gradient)
    assert peak < 1.1 * 4 * 512 * 1024


def test_weights_that_vanish_in_float16_are_zero():
    """Paddle's own cast makes 6e-5 of 2^-78."""
    values = {"weight": np.full([2, 2], 2.0**-78, "float32"), "bias": np.zeros(2, "float32")}
    model = nn.Linear(2, 2)
    model.set_state_dict(values)
    precision = amp.build_precision("O2", dtype="float16")
    model = precision.convert_model(model)
    assert float(model.weight.astype("float32").abs().max()) == 0
    precision.load_model_state_dict(model, values)
    assert float(model.weight.astype("float32").abs().max()) == 0
