"""Fine-tuning: frozen parts stay bit for bit, and balanced draws give each class its turn."""

import numpy as np
import paddle
import pytest

from image_classification import amp
from image_classification.data.sampler import balanced_shares, train_order
from image_classification.freeze import freeze
from image_classification.runtime import UserError
from tests.helpers.model_zoo import CONFIGS, build

RESNET = next(path for path in CONFIGS if path.stem == "resnet_tiny_digits")


def arrays_of(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def train_two_steps(model, mode):
    precision = amp.build_precision(mode, dtype="bfloat16" if mode != "fp32" else None)
    model = precision.convert_model(model)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=[tensor for _, tensor in precision.master_params(model)])
    for seed in range(2):
        paddle.seed(seed)
        with precision.forward_context():
            loss = paddle.nn.functional.cross_entropy(model(paddle.randn([4, 3, 16, 16])), paddle.arange(4))
        precision.backward(loss)
        precision.step(optimizer)
    return {name: np.asarray(value) for name, value in precision.model_state_dict(model).items()}


@pytest.mark.parametrize("mode", ["fp32", "auto", "O2"])
def test_frozen_stages_keep_weights_and_statistics_bit_for_bit(mode):
    paddle.seed(0)
    model = build(RESNET)
    model.train()
    before = arrays_of(model)
    frozen = freeze(model, ["conv1.*", "bn1.*", "layer[12].*"])
    after = train_two_steps(model, mode)
    assert frozen == 3 + 6 + 9
    for name, value in before.items():
        if name.startswith(("conv1", "bn1", "layer1", "layer2")):
            np.testing.assert_array_equal(after[name], value, err_msg=name)
        else:
            assert not np.array_equal(value, after[name]), name


def test_all_but_the_head_is_one_pattern():
    model = build(RESNET)
    freeze(model, ["!fc.*"])
    assert [name for name, value in model.named_parameters() if not value.stop_gradient] == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [(["laier1.*"], "'laier1.\\*' matches no parameter"), (["*"], "leaves nothing to train")],
)
def test_pattern_that_cannot_be_meant_is_an_error(patterns, message):
    with pytest.raises(UserError, match=message):
        freeze(build(RESNET), patterns)


def test_global_statistics_is_what_paddle_calls_them():
    """`freeze` sets a private attribute of Paddle; this fails when a version renames it."""
    assert paddle.nn.BatchNorm2D(2, use_global_stats=True)._use_global_stats is True


def test_balanced_draws_give_each_class_the_same_share():
    labels = np.array([0] * 900 + [1] * 90 + [3] * 10)
    shares = balanced_shares(labels)
    assert shares.sum() == pytest.approx(1) and np.bincount(labels, shares)[[0, 1, 3]] == pytest.approx([1 / 3] * 3)
    drawn = labels[train_order(1000, 0, 0, 10, shares=shares)[:, 0]]
    assert (np.bincount(drawn)[[0, 1, 3]] > 250).all()  # 1000 draws: 5.5 standard deviations below a third
    again = train_order(1000, 0, 0, 10, shares=shares)
    assert np.array_equal(labels[again[:, 0]], drawn)


def test_balanced_draws_are_the_same_images_on_any_number_of_processes():
    shares = balanced_shares(np.arange(40) % 3)
    whole = train_order(40, 1, 2, 8, shares=shares)
    parts = [train_order(40, 1, 2, 4, rank=rank, world_size=2, shares=shares) for rank in range(2)]
    assert np.array_equal(np.stack(parts, axis=1).reshape(-1, 2), whole)
