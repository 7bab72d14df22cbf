"""The criterion against NumPy in float64, in every form of label and every option."""

import dataclasses
import types

import numpy as np
import paddle
import pytest
from sklearn.utils.class_weight import compute_class_weight

from image_classification.amp import build_precision
from image_classification.build import build_parts
from image_classification.config import Config, load_config
from image_classification.losses import Criterion, balanced_class_weights, build_criterion
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from image_classification.ViT.vit import build_model
from tests.helpers.model_zoo import ROOT

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=3, size=(6, 4)).astype("float32")
HARD = np.array([0, 3, 1, 1, 2, 0])
OTHER = np.array([1, 3, 0, 2, 2, 3])
WEIGHTS = (0.5, 1.0, 2.0, 4.0)


def config(num_classes=4, **train):
    base = Config()
    return dataclasses.replace(
        base,
        TRAIN=dataclasses.replace(base.TRAIN, **train),
        MODEL=dataclasses.replace(base.MODEL, NUM_CLASSES=num_classes),
    )


def one_hot(labels):
    return np.eye(4)[labels]


def mixed(lam=0.3):
    return lam * one_hot(HARD) + (1 - lam) * one_hot(OTHER)


def reference(targets, smoothing=0.0, weights=None, gamma=0.0):
    """Return the loss in float64 from soft targets [B, C]."""
    logits = LOGITS.astype("float64")
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    weights = np.ones(4) if weights is None else np.array(weights)
    total = 0.0
    for row, target in zip(probabilities, targets, strict=True):
        for c in range(4):
            share = (1 - smoothing) * target[c] + smoothing / 4
            total -= share * weights[c] * (1 - row[c]) ** gamma * np.log(row[c])
    return total / (targets * weights).sum()


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", ["hard", "mixed"])
def test_loss_equals_the_definition(form, smoothing, weights, gamma):
    criterion = build_criterion(config(SMOOTHING=smoothing, CLASS_WEIGHTS=weights, FOCAL_GAMMA=gamma))
    labels, targets = (HARD, one_hot(HARD)) if form == "hard" else (mixed().astype("float32"), mixed())
    loss = criterion(paddle.to_tensor(LOGITS), paddle.to_tensor(labels))
    assert loss.shape == []
    assert loss.item() == pytest.approx(reference(targets, smoothing, weights, gamma), rel=2e-6)  # float32 sums


def test_mixed_targets_give_the_mix_of_two_losses():
    criterion = Criterion(smoothing=0.1)
    logits = paddle.to_tensor(LOGITS)
    first, second = (criterion(logits, paddle.to_tensor(labels)).item() for labels in (HARD, OTHER))
    both = criterion(logits, paddle.to_tensor(mixed(0.3).astype("float32"))).item()
    assert both == pytest.approx(0.3 * first + 0.7 * second, rel=1e-6)


def test_weighted_and_smoothed_hard_labels_follow_paddle_and_pytorch():
    criterion = Criterion(class_weights=WEIGHTS)
    paddles = paddle.nn.functional.cross_entropy(
        paddle.to_tensor(LOGITS), paddle.to_tensor(HARD), weight=paddle.to_tensor(WEIGHTS, dtype="float32")
    )
    assert criterion(paddle.to_tensor(LOGITS), paddle.to_tensor(HARD)).item() == pytest.approx(paddles.item(), rel=1e-6)
    # torch.nn.functional.cross_entropy(logits, hard, weight=weights, label_smoothing=0.1) is the smoothed sum over the
    # unsmoothed weights of the labels.
    smoothed = Criterion(0.1, WEIGHTS)(paddle.to_tensor(LOGITS), paddle.to_tensor(HARD)).item()
    assert smoothed == pytest.approx(reference(one_hot(HARD), 0.1, WEIGHTS), rel=2e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_gradient_is_finite_where_the_prediction_is_certain(gamma):
    logits = paddle.to_tensor([[200.0, 0.0, 0.0]], stop_gradient=False)
    Criterion(focal_gamma=gamma)(logits, paddle.to_tensor([0])).backward()
    assert np.isfinite(logits.grad.numpy()).all()


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"focal_gamma": 2.0}])
def test_gradient_equals_finite_differences(options):
    criterion = Criterion(**options)
    logits = paddle.to_tensor(LOGITS.astype("float64"), stop_gradient=False)
    criterion(logits, paddle.to_tensor(HARD)).backward()
    step = 1e-5
    for place in [(0, 0), (2, 1), (5, 3)]:
        shifted = []
        for sign in (1, -1):
            moved = LOGITS.astype("float64")
            moved[place] += sign * step
            shifted.append(criterion(paddle.to_tensor(moved), paddle.to_tensor(HARD)).item())
        slope = (shifted[0] - shifted[1]) / (2 * step)
        assert logits.grad.numpy()[place] == pytest.approx(slope, abs=1e-8)  # central differences: error ~ step ** 2


@pytest.mark.parametrize("form", ["hard", "mixed"])
@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"class_weights": WEIGHTS}, {"focal_gamma": 2.0}])
@pytest.mark.parametrize(("mode", "dtype"), [("auto", "bfloat16"), ("auto", "float16"), ("naive", "float16")])
def test_loss_of_half_logits_in_the_precisions_context(mode, dtype, options, form):
    precision = build_precision(mode, dtype=dtype)
    labels = paddle.to_tensor(HARD if form == "hard" else mixed().astype("float32"))
    criterion = Criterion(**options)
    logits = paddle.to_tensor(LOGITS).astype(dtype).detach()
    logits.stop_gradient = False
    exact = paddle.to_tensor(logits.astype("float32").numpy(), stop_gradient=False)
    criterion(exact, labels).backward()
    with precision.forward_context():
        loss = criterion(logits, labels)
        loss.backward()
    # auto: the loss itself runs in float32; naive: every operator rounds to float16
    assert loss.dtype == (paddle.float32 if mode == "auto" else paddle.float16)
    relative = 1e-6 if mode == "auto" else 5e-3
    assert loss.astype("float32").item() == pytest.approx(criterion(exact, labels).item(), rel=relative)
    step = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]  # gradients come back in the logits' dtype
    error = np.abs(logits.grad.astype("float32").numpy() - exact.grad.numpy()).max()
    assert error <= (step if mode == "auto" else 8 * step)


def images_with(labels):
    return types.SimpleNamespace(labels=np.asarray(labels))


def test_balanced_class_weights_equal_scikit_learns():
    labels = RNG.choice(4, size=97, p=[0.6, 0.25, 0.1, 0.05])
    assert set(labels) == {0, 1, 2, 3}
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    np.testing.assert_allclose(balanced_class_weights(np.bincount(labels)), expected, rtol=1e-15)
    criterion = build_criterion(config(CLASS_WEIGHTS="balanced"), images_with(labels))
    loss = criterion(paddle.to_tensor(LOGITS), paddle.to_tensor(HARD))
    assert loss.item() == pytest.approx(reference(one_hot(HARD), weights=expected), rel=2e-6)  # float32 sums


def test_balanced_class_weights_of_the_whole_training_set_reach_the_criterion(tmp_path):
    words = ["-opts", "TRAIN.CLASS_WEIGHTS=balanced", "TRAIN.SMOOTHING=0", "DATA.NUM_WORKERS=0"]
    path = ROOT / "image_classification" / "ViT" / "configs" / "vit_tiny_digits.yaml"
    settings = load_config([f"-cfg={path}", *words], build_model)
    parts = build_parts(settings, build_model, SingleProcess())
    labels = parts.train_loader.dataset.labels
    assert len(labels) == 1437
    logits, targets = paddle.randn([10, 10]), paddle.arange(10)
    expected = compute_class_weight("balanced", classes=np.arange(10), y=labels).astype("float32")
    by_paddle = paddle.nn.functional.cross_entropy(logits, targets, weight=paddle.to_tensor(expected))
    assert parts.criterion(logits, targets).item() == pytest.approx(by_paddle.item(), rel=1e-6)


def test_balanced_class_weights_need_no_labels_in_an_evaluation():
    criterion = build_criterion(config(CLASS_WEIGHTS="balanced"))
    loss = criterion(paddle.to_tensor(LOGITS), paddle.to_tensor(HARD))
    assert loss.item() == pytest.approx(reference(one_hot(HARD)), rel=2e-6)


def test_balanced_class_weights_of_a_class_without_an_image_are_one_line():
    with pytest.raises(UserError, match=r"^TRAIN\.CLASS_WEIGHTS: balanced: without a training image: class 1, 3$"):
        build_criterion(config(CLASS_WEIGHTS="balanced"), images_with([0, 0, 2]))


def test_weights_of_other_classes_name_the_key():
    with pytest.raises(UserError, match=r"TRAIN\.CLASS_WEIGHTS: 2 weights for 4 classes"):
        build_criterion(config(CLASS_WEIGHTS=(1.0, 2.0)))
