"""The moving average of weights and buffers against its formula, and the swap for evaluation."""

import dataclasses

import numpy as np
import paddle
import pytest

from image_classification import checkpoint
from image_classification.amp import build_precision
from image_classification.build import build_parts
from image_classification.config import Config
from image_classification.ema import EMA, build_ema
from image_classification.evaluate_only import load_resumed_weights
from image_classification.foreign import read_resumed
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError, get_logger
from tests.helpers.small_runs import build_net, config_of, trainer_of


def model(seed=0):
    paddle.seed(seed)
    return paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4))


def change(layer, seed):
    rng = np.random.default_rng(seed)
    for tensor in layer.state_dict().values():
        tensor.set_value(rng.normal(size=tensor.shape).astype("float32"))


def test_average_follows_the_formula_for_weights_and_buffers():
    layer = model()
    expected = {name: tensor.numpy().astype("float64") for name, tensor in layer.state_dict().items()}
    ema = EMA(0.9, layer.state_dict())
    for seed in range(5):
        change(layer, seed)
        ema.update(layer.state_dict())
        for name, tensor in layer.state_dict().items():
            expected[name] = 0.9 * expected[name] + 0.1 * tensor.numpy()
    assert {"1._mean", "1._variance"} <= set(expected)
    for name, value in ema.state_dict().items():
        np.testing.assert_allclose(value.numpy(), expected[name], atol=1e-6, err_msg=name)  # float32, five steps


def test_average_of_what_does_not_change_keeps_its_bits():
    layer = model()
    layer[1]._mean.set_value(np.float32([0.1, 1 / 3, -7.3, 1e-6]))
    before = {name: tensor.numpy().tobytes() for name, tensor in layer.state_dict().items()}
    ema = EMA(0.9998, layer.state_dict())
    for _ in range(5):
        ema.update(layer.state_dict())
    assert {name: tensor.numpy().tobytes() for name, tensor in ema.state_dict().items()} == before


def test_average_does_not_move_with_the_model():
    layer = model()
    ema = EMA(0.9, layer.state_dict())
    before = ema.state_dict()["0.weight"].numpy()
    change(layer, 1)
    np.testing.assert_array_equal(ema.state_dict()["0.weight"].numpy(), before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_average_of_half_tensors_is_float32_and_keeps_small_updates(dtype):
    ema = EMA(0.9999, {"w": paddle.ones([1], dtype)})
    assert ema.state_dict()["w"].dtype == paddle.float32  # before Paddle promotes a sum
    for _ in range(10):
        ema.update({"w": paddle.full([1], 1.5).astype(dtype)})
    average = ema.state_dict()["w"]
    assert average.dtype == paddle.float32
    assert average.item() == pytest.approx(1.5 - 0.5 * 0.9999**10, abs=1e-6)


def test_integer_buffers_are_copied():
    ema = EMA(0.9, {"count": paddle.to_tensor([1])})
    ema.update({"count": paddle.to_tensor([8])})
    assert ema.state_dict()["count"].item() == 8


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_applied_swaps_and_restores_bit_for_bit(dtype):
    layer = model()
    layer.to(dtype=dtype)
    ema = EMA(0.5, {name: tensor * 2 for name, tensor in layer.state_dict().items()})
    own = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match="stop"):
        with ema.applied(layer):
            for name, tensor in layer.state_dict().items():
                assert tensor.numpy().dtype == own[name].dtype
                np.testing.assert_array_equal(tensor.numpy(), own[name] * 2, err_msg=name)
            raise RuntimeError("stop")
    for name, tensor in layer.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), own[name], err_msg=name)
    assert layer[0].weight.stop_gradient is False


def test_applied_keeps_the_average():
    layer = model()
    ema = EMA(0.5, {name: tensor * 2 for name, tensor in layer.state_dict().items()})
    with ema.applied(layer):
        change(layer, 1)
    np.testing.assert_array_equal(ema.state_dict()["0.weight"].numpy(), layer[0].weight.numpy() * 2)


def test_state_round_trip_continues_bit_for_bit():
    layer = model()
    straight, saved = EMA(0.9, layer.state_dict()), EMA(0.9, layer.state_dict())
    change(layer, 1)
    straight.update(layer.state_dict())
    saved.update(layer.state_dict())
    state = {name: value.numpy() for name, value in saved.state_dict().items()}
    resumed = EMA(0.9, model(seed=5).state_dict())
    resumed.load_state_dict(state, {})
    change(layer, 2)
    straight.update(layer.state_dict())
    resumed.update(layer.state_dict())
    for name, value in resumed.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), straight.state_dict()[name].numpy(), err_msg=name)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_decay_out_of_range_names_the_key(decay):
    with pytest.raises(UserError, match=r"TRAIN\.MODEL_EMA_DECAY"):
        EMA(decay, {})


def test_names_or_shapes_that_do_not_fit_are_errors():
    ema = EMA(0.9, model().state_dict())
    with pytest.raises(UserError, match="1 missing, 0 unknown, first '1._variance'"):
        ema.update({name: value for name, value in model().state_dict().items() if name != "1._variance"})
    wrong = {name: value.numpy() for name, value in model().state_dict().items()} | {"0.bias": np.zeros(5, "float32")}
    with pytest.raises(UserError, match=r"'0.bias' is \[5\], expected \[4\]"):
        ema.load_state_dict(wrong, {})
    with pytest.raises(UserError, match="do not fit the model"):
        with ema.applied(paddle.nn.Linear(2, 2)):
            pass


def test_build_follows_the_config():
    section = dataclasses.replace(Config().TRAIN, MODEL_EMA=True, MODEL_EMA_DECAY=0.75)
    assert build_ema(section, model().state_dict(), 100).decay == 0.75


@pytest.mark.parametrize(("decay", "steps", "said"), [
    (0.9, 21, None),  # 0.9 ** 21 = 0.109, 0.9 ** 22 = 0.098
    (0.9, 22, ""), (0.0, 1, ""),
    (0.99996, 88, "the 88 steps of this run the average is still 100 % the first weights; 0.94901 would leave 1 %"),
])  # fmt: skip
def test_average_that_is_too_slow_for_the_run_says_so(decay, steps, said, caplog):
    caplog.set_level("INFO", get_logger().name)
    section = dataclasses.replace(Config().TRAIN, MODEL_EMA=True, MODEL_EMA_DECAY=decay)
    build_ema(section, model().state_dict(), steps)
    assert f"decay {decay:g}; it is what is evaluated" in caplog.text
    assert ("TRAIN.MODEL_EMA_DECAY" in caplog.text) == (said != "") and (said or "") in caplog.text


def test_evaluation_of_a_resumed_average_says_so(tmp_path, caplog):
    caplog.set_level("INFO", get_logger().name)
    for average in (True, False):
        path = tmp_path / f"{average}.pdparams"
        checkpoint.save(path, trainer_of(config_of(train={"MODEL_EMA": average})).state())
        config = config_of(MODEL={"NUM_CLASSES": 4, "RESUME": str(path)}, EVAL=True)
        load_resumed_weights(build_parts(config, build_net, SingleProcess()), *read_resumed(config))
        assert (f"{path}: its averaged weights are taken" in caplog.text) == average


def test_without_ema_evaluation_sees_the_models_own_weights():
    layer = model()
    before = layer[0].weight.numpy()
    none = build_ema(Config().TRAIN, layer.state_dict(), 100)
    none.update({})
    with none.applied(layer):
        np.testing.assert_array_equal(layer[0].weight.numpy(), before)
    assert none.state_dict() == {}
    none.load_state_dict({"0.weight": before}, {})


def test_checkpoint_without_average_starts_it_from_the_resumed_weights():
    layer = model()
    ema = EMA(0.75, layer.state_dict())
    change(layer, 1)  # the weights of the checkpoint
    resumed = layer[0].weight.numpy()
    ema.load_state_dict({}, layer.state_dict())
    np.testing.assert_array_equal(ema.state_dict()["0.weight"].numpy(), resumed)
    change(layer, 2)
    ema.update(layer.state_dict())
    expected = 0.75 * resumed + 0.25 * layer[0].weight.numpy()
    np.testing.assert_allclose(ema.state_dict()["0.weight"].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["O2", "naive"])
def test_average_of_a_run_starts_at_its_masters_follows_them_and_starts_there_again_where_a_checkpoint_has_none(mode):
    train = {"NUM_EPOCHS": 1, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.0}
    config = config_of(train=train, amp={"MODE": mode, "DTYPE": "float16", "init_scale": 1.0})
    first, second = trainer_of(config), trainer_of(config)

    def check(trainer):
        average, own = trainer.ema.state_dict()["fc.weight"].numpy(), trainer.model.state_dict()["fc.weight"]
        masters = trainer.precision.model_state_dict(trainer.model)["fc.weight"].numpy()
        np.testing.assert_allclose(average, masters, rtol=0, atol=1e-7)  # a unit of float32 numbers below 1
        assert abs(own.numpy().astype("float32") - masters).max() > 1e-5  # the weights themselves are rounded

    check(first)
    first.fit()
    assert first.progress.step == 5
    check(first)
    second.load_state(checkpoint.to_arrays(first.state() | {"ema": {}}), "a file")
    check(second)


@pytest.mark.parametrize("mode", ["fp32", "auto", "O1", "O2", "O3", "naive"])
def test_evaluation_in_every_mode_sees_the_average_and_afterwards_the_model(mode):
    precision = build_precision(mode)
    layer = precision.convert_model(model())
    layer.eval()
    images = paddle.ones([2, 3])

    def logits():
        with paddle.no_grad(), precision.forward_context():
            return layer(images).astype("float32").numpy()

    own = logits()
    ema = EMA(0.0, precision.model_state_dict(layer))
    ema.update({name: paddle.zeros_like(value) for name, value in precision.model_state_dict(layer).items()})
    with ema.applied(layer):
        assert not logits().any()
    np.testing.assert_array_equal(logits(), own)
    assert own.any()
