"""The commands that prepare and show data, started as a user does."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from image_classification.runtime import UserError
from image_classification.tools import show_batch
from tests.helpers.data_samples import cifar10_members, make_config, write_class_folders

ROOT = Path(__file__).resolve().parents[2]


def run(tool, *arguments):
    command = [sys.executable, str(ROOT / "tools" / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_show_batch_draws_a_grid_with_soft_labels(tmp_path):
    config = ROOT / "image_classification" / "ViT" / "configs" / "vit_tiny_digits.yaml"
    path = tmp_path / "batch.png"
    result = run("show_batch.py", path, f"-cfg={config}", "-batch_size=10", "-opts", "TRAIN.MIXUP_ALPHA=0.8")
    assert result.returncode == 0, result.stderr
    picture = cv2.imread(str(path))
    # 4 x 3 tiles of 32 x 3 pixels with border 4 and two lines of size 11, with 5 below each and 5 around
    assert picture.shape == (3 * (96 + 4 + 2 * (11 + 5) + 2 * 5), 4 * (96 + 8), 3)
    assert len(np.unique(picture[:104, :104])) > 20
    assert (picture[-100:, -100:] == 255).all()


def test_show_batch_names_the_label_of_an_image_and_the_two_largest_of_a_mixed_one():
    names = ["cat", "dog", "eel"]
    labels = [np.int64(2), np.array([0.0, 0.3, 0.7]), np.array([0.0, 1.0, 0.0])]
    lines = [show_batch._labels(label, names) for label in labels]
    assert lines == [["eel"], ["0.70 eel", "0.30 dog"], ["1.00 dog", ""]]


@pytest.mark.parametrize(
    "word", ["-eval", "-output=mine", "-dry_run", "-amp", "-amp_dtype=float16", "-pretrained=w.pdparams"]
)
def test_show_batch_when_a_word_would_have_no_effect_refuses_it(word, tmp_path):
    result = run("show_batch.py", tmp_path / "batch.png", "-cfg=vit_tiny_digits", word)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and not (tmp_path / "batch.png").exists()
    assert f"error: {word}: the first training batch is drawn" in result.stderr


def test_show_batch_writes_over_nothing(tmp_path):
    (tmp_path / "cat.jpg").write_text("mine")
    result = run("show_batch.py", tmp_path / "cat.jpg", "-cfg=vit_tiny_digits")
    assert result.returncode == 2 and "cat.jpg: exists" in result.stderr
    assert (tmp_path / "cat.jpg").read_text() == "mine"


def test_show_batch_says_what_a_format_cannot_hold():
    wide = np.zeros([1, 16384, 3], "uint8")  # webp ends at 16383 pixels
    with pytest.raises(UserError, match=r"b\.webp: a picture of 16384 x 1 pixels is too large for \.webp"):
        show_batch.encoded(Path("b.webp"), wide)
    assert show_batch.encoded(Path("b.PNG"), wide).startswith(b"\x89PNG")


def test_show_batch_draws_the_pixels_as_they_were_before_they_were_normalised():
    config = make_config(3, IMAGENET_MEAN=(0.5,) * 3, IMAGENET_STD=(0.25,) * 3)
    images, labels = np.ones((3, 3, 8, 8), "float32"), np.arange(3)
    picture = show_batch.draw(config, images, labels, ["猫", "é", "e"])
    middle = picture[8:16, 8:16]
    assert np.unique(middle).tolist() == [191]  # (1 * 0.25 + 0.5) * 255
    captions = [picture[row : row + 26, column : column + 104] for row, column in ((100, 0), (100, 104), (226, 0))]
    assert len({caption.tobytes() for caption in captions}) == 3  # in any script, none without a shape
    assert all((caption < 255).any() for caption in captions)


def test_show_batch_takes_the_options_of_a_training_before_the_picture(tmp_path):
    words = ["-batch_size", 4, "-j", 0, "-opts", "TRAIN.MIXUP_ALPHA=0.8", "SEED=3", "-cfg", "vit_tiny_digits"]
    result = run("show_batch.py", *words, tmp_path / "batch.png")
    assert result.returncode == 0, result.stderr
    assert "4 of 4 images" in result.stdout


def test_show_batch_mixes_the_classes_of_the_data_whatever_number_the_model_has(tmp_path, capsys):
    write_class_folders(tmp_path / "train", dict.fromkeys("abcdefghijkl", 1))  # the digits' model has 10 outputs
    words = ["-batch_size=12", "-j=0", "-dataset=folder", f"-data_path={tmp_path}", "-opts", "TRAIN.MIXUP_ALPHA=0.8"]
    assert show_batch.main([str(tmp_path / "batch.png"), "-cfg=vit_tiny_digits", *words]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.endswith("batch.png: 12 of 12 images\n")


def test_show_batch_reports_a_wrong_ending_in_one_line(tmp_path):
    config = tmp_path / "digits.yaml"
    config.write_text("DATA: {DATASET: digits, IMAGE_SIZE: 32, BATCH_SIZE: 4}\nMODEL: {NUM_CLASSES: 10}\n")
    result = run("show_batch.py", tmp_path / "batch.xyz", "-cfg", config)
    assert result.returncode == 2
    assert "error: " in result.stderr.splitlines()[-1] and "batch.xyz" in result.stderr.splitlines()[-1]


def test_prepare_dataset_counts_and_names_corrupt_images(tmp_path):
    for name, content in cifar10_members()[0].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    result = run("prepare_dataset.py", "cifar10", tmp_path, "--check")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["train: 40 images, 10 classes", "val: 8 images, 10 classes"]
    for split in ("train", "val"):
        write_class_folders(tmp_path / split, {"a": 2, "b": 2})
    (tmp_path / "val" / "b" / "image_0002.jpg").write_bytes(b"no image")
    (tmp_path / "val" / "a" / "image_0001.jpg").unlink()
    os.mkfifo(tmp_path / "val" / "a" / "image_0001.jpg")
    result = run("prepare_dataset.py", "imagenet2012", tmp_path, "--check")
    assert result.returncode == 1
    assert "val/a/image_0001.jpg (cannot be read: it is no plain file)" in result.stdout
    assert "val/b/image_0002.jpg" in result.stdout and "val: 4 images, 2 classes" in result.stdout
    (tmp_path / "train" / "a" / "image_0001.jpg").write_bytes(b"no image")
    for name in ("a/image_0001.jpg", "b/image_0002.jpg"):
        (tmp_path / "val" / name).unlink()
    result = run("prepare_dataset.py", "imagenet2012", tmp_path, "--check")  # one in the training, none after it
    assert result.returncode == 1 and result.stdout.count("corrupt: ") == 1
    assert run("prepare_dataset.py", "imagenet2012", tmp_path / "none", "--check").stderr.startswith("error: ")


@pytest.mark.parametrize(("classes", "words"), [
    ({"train": ["a"], "val": ["a"]}, ["has one class, a: nothing to tell apart"]),
    ({"train": ["a", "b"], "val": ["a", "c"]}, ["val/c: the training set has no class of this name"]),
])  # fmt: skip
def test_prepare_dataset_refuses_the_data_that_a_training_refuses(tmp_path, classes, words):
    for split, names in classes.items():
        write_class_folders(tmp_path / split, dict.fromkeys(names, 2))
    result = run("prepare_dataset.py", "folder", tmp_path, "--check")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ") and all(word in result.stderr for word in words)


def test_prepare_dataset_refuses_labels_of_the_evaluation_beyond_those_of_the_training(tmp_path):
    write_class_folders(tmp_path, {"a": 2, "b": 2, "c": 2})
    for split, last in (("train", "b"), ("val", "c")):
        lines = [f"{name}/image_0001.jpg {label}" for label, name in enumerate("abc") if name <= last]
        (tmp_path / f"{split}_list.txt").write_text("\n".join(lines))
    result = run("prepare_dataset.py", "list", tmp_path, "--check")
    assert result.returncode == 2 and "val_list.txt:3: label 2 is outside 0..1" in result.stderr
