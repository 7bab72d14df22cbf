"""From a folder of photographs to predictions and an exported model, by the README's five commands alone."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from image_classification.weights import export_tensors, write_weights
from image_classification.zoo import load_model
from tests.helpers.model_zoo import ROOT

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "grey": (128, 128, 128), "red": (210, 50, 40)}
CLASSES = sorted(COLOURS)
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("paddle2onnx", "onnxruntime"))


def write_photos(root, count):
    """Write `count` pictures of each class as people have them: JPEG, PNG, grey, with a palette, turned by EXIF."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            size = (*rng.integers(40, 400, 2), 3)
            pixels = np.clip(rng.normal(colour, 30, size), 0, 255).astype(np.uint8)
            image, ending, options = Image.fromarray(pixels), "jpg", {}
            if number % 5 == 1:
                ending = "png"
            elif number % 5 == 2 and name == "grey":
                image = image.convert("L")
            elif number % 5 == 3:
                image, ending = image.convert("P"), "png"
            elif number % 5 == 4:
                options["exif"] = Image.Exif()
                options["exif"][0x0112] = 6  # orientation: turn by 90 degrees
            image.save(root / name / f"photo {number}.{ending}", **options)
    cut = root / CLASSES[-1] / "photo 0.jpg"
    cut.write_bytes(cut.read_bytes()[:300])


def commands_of_the_readme():
    """Return the words of each of the five commands, without `python`."""
    blocks = re.findall(r"```shell\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "finetune.yaml" in block]
    return [shlex.split(line)[1:] for line in block.splitlines()]


def run(words, folder):
    """Run a command of the README with its folders in `folder`, and return what it said; exit code 1: corrupt files."""
    places = {"photos": folder / "photos", "new_photos": folder / "new_photos"}
    words = [re.sub(r"(^|=)output/", rf"\1{folder}/output/", word) for word in words]
    words = [re.sub(r"(^|=)(photos|new_photos)$", lambda m: f"{m[1]}{places[m[2]]}", word) for word in words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    print(shlex.join(words), done.stdout, done.stderr, sep="\n")
    return done.stdout


def walk(folder, count, *smaller):
    """Do what the README says with `count` pictures a class, and return the five outputs."""
    write_photos(folder / "photos", count)
    (folder / "new_photos").mkdir()
    for name, colour in COLOURS.items():
        Image.fromarray(np.full((90, 160, 3), colour, np.uint8)).save(folder / "new_photos" / f"{name}.png")
    model, _ = load_model("resnet18")  # what the recipe would fetch is not here
    write_weights(folder / "resnet18.safetensors", export_tensors(model, "torch"))
    check, train, evaluate, predict, export = commands_of_the_readme()
    train = [*train, f"-pretrained={folder / 'resnet18.safetensors'}", *smaller]
    export = [word for word in export if HAS_ONNX or word != "-onnx"]
    return [run(words, folder) for words in (check, train, evaluate, predict, export)]


def check_results(folder, outputs, count):
    check, train, _, predict, export = outputs
    assert f"corrupt: {folder / 'photos' / 'red' / 'photo 0.jpg'}" in check and "4 classes" in check
    assert "4 classes (blue, green, grey, red), so the model has 4 outputs instead of 1000" in train
    assert "another number of classes, fresh head: fc.bias, fc.weight" in train
    trained, evaluated = (json.loads((folder / "output" / name / "report.json").read_text())
                          for name in ("photos", "photos-eval"))  # fmt: skip
    assert evaluated["top1"] == trained["best_top1"]
    assert (folder / "output" / "photos-eval" / "confusion.png").exists()
    assert [line for line in predict.splitlines() if not line.startswith(" ")] == [
        str(folder / "new_photos" / f"{name}.png") for name in CLASSES
    ]
    assert all(name in predict for name in CLASSES)
    assert (folder / "output" / "predictions" / "red-png.png").exists()
    assert json.loads((folder / "output" / "deploy" / "preprocessing.json").read_text())["class_names"] == CLASSES
    assert "paddle.inference: 10 images" in export
    assert (folder / "output" / "deploy" / "inference.onnx").exists() == HAS_ONNX


def test_five_commands_lead_from_photographs_to_an_exported_model(tmp_path):
    outputs = walk(tmp_path, 6, "-image_size=32", "-batch_size=8", "-num_epochs=1", "-opts", "DATA.NUM_WORKERS=0")
    check_results(tmp_path, outputs, 6)


@pytest.mark.slow
def test_five_commands_learn_from_eight_hundred_photographs(tmp_path):
    """The colours of the classes do not overlap: whatever learns at all tells them apart."""
    outputs = walk(tmp_path, 200, "-image_size=64", "-num_epochs=5")
    check_results(tmp_path, outputs, 200)
    assert json.loads((tmp_path / "output" / "photos-eval" / "report.json").read_text())["top1"] > 0.9
