"""The files about classes that an evaluation leaves, and the comparison with float32."""

import csv
import json
import subprocess
import sys

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification.class_files import _shortened, draw_confusion, summary, write_class_files, write_summary
from image_classification.metrics import ClassReport
from image_classification.run_folder import RunFolder
from image_classification.weights import export_tensors, write_weights
from image_classification.zoo import load_model
from tests.helpers.model_zoo import ROOT

NAMES = ["cat", "dog, large", "bird"]


@pytest.fixture
def report():
    """Return a report over 5 images: cat right, cat as dog twice, dog right, no bird, one dog as bird."""
    made = ClassReport(3)
    logits = np.array([[4, 0, 0], [0, 4, 0], [0, 4, 0], [0, 4, 0], [0, 0, 4]], np.float32)
    made.add(logits, np.array([0, 0, 0, 1, 1]))
    return made


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_confusion_and_accuracy_of_each_class_are_written(report, tmp_path):
    lines = write_class_files(RunFolder(tmp_path), report, NAMES)
    confusion = rows_of(tmp_path / "confusion.csv")
    assert confusion[0][1:] == NAMES
    assert [[int(cell) for cell in row[1:]] for row in confusion[1:]] == [[1, 2, 0], [0, 1, 1], [0, 0, 0]]
    per_class = rows_of(tmp_path / "per_class.csv")
    assert per_class[1] == ["0", "cat", "3", "0.333333", "dog, large", "2"]
    assert per_class[2] == ["1", "dog, large", "2", "0.500000", "bird", "1"]
    assert per_class[3] == ["2", "bird", "0", "", "", "0"]  # a class without images has no accuracy
    assert lines[1:] == ["worst classes: cat: 0.3333 of 3 images", "worst classes: dog, large: 0.5000 of 2 images"]


def test_summary_is_json_with_calibration_and_worst_classes(report, tmp_path):
    write_summary(RunFolder(tmp_path), {"top1": 0.4} | summary(report, NAMES))
    found = json.loads((tmp_path / "evaluation.json").read_text())
    confidence = np.exp(4) / (np.exp(4) + 2)  # of every one of the five predictions, two of which are right
    assert found["expected_calibration_error"] == pytest.approx(confidence - 2 / 5, abs=1e-6)
    assert found["worst_classes"][0] == {"class": "cat", "accuracy": pytest.approx(1 / 3), "images": 3}


def test_picture_is_brightest_where_predictions_are(tmp_path):
    confusion = np.zeros((3, 3), np.int64)
    confusion[0, 2] = 5
    draw_confusion(confusion, NAMES, tmp_path / "c.png")
    picture = np.asarray(Image.open(tmp_path / "c.png").convert("RGB")).astype(int)
    yellow = (picture[:, :, 0] > 240) & (picture[:, :, 1] > 220) & (picture[:, :, 2] < 60)  # viridis at 1
    columns = np.flatnonzero(yellow[: len(yellow) // 3, : picture.shape[1] * 3 // 4].any(axis=0))
    assert len(columns) and columns.min() > picture.shape[1] // 2  # first row, last column


@pytest.mark.parametrize(("classes", "count", "has_numbers"), [(20, 888, True), (21, 888, False), (12, 888_888, False)])
def test_cells_have_numbers_where_there_is_room(tmp_path, classes, count, has_numbers):
    draw_confusion(np.diag(np.full(classes, count)), [""] * classes, tmp_path / "c.png")
    picture = np.asarray(Image.open(tmp_path / "c.png").convert("RGB")).astype(int)
    picture = picture[:, : picture.shape[1] * 3 // 4]  # without the bar of colours
    yellow = (picture[:, :, 0] > 240) & (picture[:, :, 1] > 220) & (picture[:, :, 2] < 60)  # viridis at 1
    cell = picture[yellow.any(axis=1)][:30]  # the rows of the first cells
    inside = cell[:, yellow[yellow.any(axis=1)][0]]
    assert (inside.max(axis=2) < 60).any() == has_numbers


def test_names_with_dollars_are_no_formulas(tmp_path):
    draw_confusion(np.eye(2, dtype=np.int64), ["x^$_$", "$"], tmp_path / "c.png")
    assert Image.open(tmp_path / "c.png").size == (960, 840)


@pytest.mark.parametrize(("classes", "name"), [(200, 50 * "0"), (2, 50 * "W"), (2, "")])
def test_nothing_of_the_picture_is_cut_at_its_edges(tmp_path, classes, name):
    """200 classes have no names; the letters of "label" were cut in half."""
    draw_confusion(np.eye(classes, dtype=np.int64), [name] * classes, tmp_path / "c.png")
    picture = np.asarray(Image.open(tmp_path / "c.png").convert("L"))
    assert picture.shape == (840, 960)
    assert all((edge == 255).all() for edge in (picture[:3], picture[-3:], picture[:, :3], picture[:, -3:]))


def test_long_names_that_differ_at_their_ends_are_told_apart():
    assert [_shortened(name) for name in ("n02085620-chihuahua-long", "n02085620-chihuahua-short", "cat")] == [
        "n0208562…ua-long", "n0208562…a-short", "cat"]  # fmt: skip


def test_evaluation_in_mixed_precision_states_the_difference_to_float32(tmp_path):
    """A model that always answers 3, by 256.5 to 256; bfloat16 has 256 for both, and the first of equals is 2."""
    model, _ = load_model("vit_tiny_digits")
    model.head.weight.set_value(paddle.zeros(model.head.weight.shape))
    model.head.bias.set_value(np.float32([0, 0, 256, 256.5, 0, 0, 0, 0, 0, 0]))
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    words = ["-cfg=./configs/vit_tiny_digits.yaml", "-eval", "-amp", f"-pretrained={tmp_path / 'w.safetensors'}"]
    words += ["-opts", f"OUTPUT={tmp_path / 'run'}", "EVAL_FP32=True"]
    folder = ROOT / "image_classification" / "ViT"
    command = [sys.executable, "main_single_gpu.py", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (found["top1"], found["top1_fp32"]) == (35 / 360, 37 / 360)  # test images of a 2, of a 3
    assert found["top1_difference"] == found["top1"] - found["top1_fp32"]
    assert "in float32: difference" in (tmp_path / "run" / "log.txt").read_text()
    assert (tmp_path / "run" / "confusion.png").exists()
