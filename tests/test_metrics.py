"""Evaluation figures against plain loops and scikit-learn, and exactness over any split of the images."""

import math

import numpy as np
import paddle
import pytest

from image_classification.metrics import LOSS_UNITS, Accumulator, ClassReport, cross_entropy, topk_correct

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(101, 7)).astype("float32")
LABELS = RNG.integers(0, 7, size=101)


def test_topk_equals_sorting_each_row():
    for ks in [(1, 5), (2,), (1, 3, 7)]:
        expected = tuple(
            sum(label in np.argsort(-row, kind="stable")[:k] for row, label in zip(LOGITS, LABELS, strict=True))
            for k in ks
        )
        assert topk_correct(LOGITS, LABELS, ks) == expected


def test_topk_of_equal_logits_ranks_by_class_index():
    logits = np.zeros((3, 4), "float32")
    assert topk_correct(logits, np.array([0, 1, 3]), (1, 2, 4)) == (1, 2, 3)


def test_topk_of_nan_is_wrong_and_k_above_the_classes_is_right():
    logits = np.array([[np.nan, 0.0], [1.0, np.nan], [0.0, 1.0]], "float32")
    assert topk_correct(logits, np.array([0, 0, 0]), (1, 5)) == (0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_topk_takes_paddle_tensors_of_any_float_dtype(dtype):
    logits = paddle.to_tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 1.0]]).astype(dtype)
    assert topk_correct(logits, paddle.to_tensor([1, 2]), (1, 2)) == (1, 2)


def test_topk_counts_soft_targets_as_their_largest_class():
    targets = np.array([[0.7, 0.3], [0.4, 0.6]], "float32")
    assert topk_correct(np.array([[1.0, 0.0], [1.0, 0.0]]), targets, (1,)) == (1,)


def test_cross_entropy_equals_paddle():
    expected = paddle.nn.functional.cross_entropy(
        paddle.to_tensor(LOGITS.astype("float64")), paddle.to_tensor(LABELS), reduction="none"
    )
    np.testing.assert_allclose(cross_entropy(LOGITS, LABELS), expected.numpy().reshape(-1), rtol=1e-12)


def test_result_is_the_mean_over_all_images():
    accumulator = Accumulator()
    for part in np.array_split(np.arange(101), 8):
        accumulator.add(LOGITS[part], LABELS[part])
    result = accumulator.result()
    assert result["images"] == 101
    assert result["top1"] == (LOGITS.argmax(1) == LABELS).mean()
    assert result["top5"] == topk_correct(LOGITS, LABELS)[1] / 101
    assert result["loss"] == pytest.approx(cross_entropy(LOGITS, LABELS).mean(), abs=0.2 / LOSS_UNITS)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_sums_do_not_depend_on_batches_and_processes(ranks):
    whole, report = Accumulator(), ClassReport(7)
    whole.add(LOGITS, LABELS)
    report.add(LOGITS, LABELS)
    total, total_report = Accumulator(), ClassReport(7)
    for rank in range(ranks):
        own, own_report = Accumulator(), ClassReport(7)
        mine = np.arange(rank, 101, ranks)
        for batch in np.array_split(mine, 3):
            own.add(LOGITS[batch], LABELS[batch])
            own_report.add(LOGITS[batch], LABELS[batch])
        total.merge(own.sums)
        total_report.merge(own_report.sums)
    assert total.result() == whole.result()
    np.testing.assert_array_equal(total_report.sums, report.sums)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_broken_logits_make_the_loss_infinite_and_the_image_wrong(bad):
    logits = np.array([[0.0, 1.0], [0.0, bad]], "float32")
    accumulator = Accumulator()
    accumulator.add(logits, np.array([1, 0]))
    top5 = 0.5 if math.isnan(bad) else 1.0
    assert accumulator.result() == {"top1": 0.5, "top5": top5, "loss": math.inf, "images": 2, "non_finite": 1}


def test_result_without_images_is_nan():
    assert Accumulator().result()["images"] == 0
    assert math.isnan(Accumulator().result()["top1"])


def test_confusion_and_per_class_accuracy_equal_scikit_learn():
    from sklearn.metrics import confusion_matrix, recall_score

    report = ClassReport(7)
    report.add(LOGITS, LABELS)
    np.testing.assert_array_equal(report.confusion, confusion_matrix(LABELS, LOGITS.argmax(1)))
    np.testing.assert_allclose(report.per_class_accuracy(), recall_score(LABELS, LOGITS.argmax(1), average=None))


def test_image_with_a_nan_is_wrong_in_its_class_too():
    """As in top-1; the index of a NaN is what argmax finds, so class 0 would be right wherever all is NaN."""
    logits, labels = np.full((3, 3), np.nan, "float32"), np.array([0, 1, 2])
    logits[1] = [0, 9, np.nan]
    report = ClassReport(3)
    report.add(logits, labels)
    assert topk_correct(logits, labels)[0] == np.trace(report.confusion) == report.calibration[1].sum() == 0
    assert report.per_class_accuracy().tolist() == [0, 0, 0] and report.confusion.sum() == 3


def test_worst_classes_come_first_and_empty_ones_are_left_out():
    report = ClassReport(4)
    logits = np.eye(4, dtype="float32")[[0, 1, 1, 0, 0]]
    report.add(logits, np.array([0, 0, 1, 3, 3]))
    assert report.worst_classes() == [(3, 0.0, 2), (0, 0.5, 2), (1, 1.0, 1)]
    assert report.worst_classes(1) == [(3, 0.0, 2)]
    assert math.isnan(report.per_class_accuracy()[2])


def test_calibration_error_equals_its_definition():
    report = ClassReport(7, bins=10)
    labels = np.where(RNG.random(101) < 0.7, LOGITS.argmax(1), LABELS)  # some bins too sure, some not sure enough
    report.add(LOGITS, labels)
    probabilities = np.exp(LOGITS.astype("float64")) / np.exp(LOGITS.astype("float64")).sum(1, keepdims=True)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    error = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence > low) & (confidence <= low + 0.1)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert report.expected_calibration_error() == pytest.approx(error, abs=1 / LOSS_UNITS)


def test_calibration_keeps_neighbouring_bins_apart():
    report = ClassReport(2, bins=10)
    report.add(np.log([[0.85, 0.15], [0.95, 0.05]]), np.array([0, 1]))  # too unsure and right, too sure and wrong
    assert report.expected_calibration_error() == pytest.approx((0.15 + 0.95) / 2, abs=1 / LOSS_UNITS)


def test_calibration_error_of_certain_and_right_predictions_is_zero():
    report = ClassReport(3)
    report.add(np.eye(3, dtype="float32") * 1000, np.arange(3))
    assert report.expected_calibration_error() == 0.0
