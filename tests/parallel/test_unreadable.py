"""A training image that one of several processes cannot read: all end, nothing is lost, a resume has the same bits."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from image_classification import checkpoint
from image_classification.data.sampler import train_order
from tests.helpers.entry import PACKAGE

IMAGES, WINDOW = 24, 3
SLOW = pytest.mark.slow  # three runs of two processes each
SMALL_VIT = ("MODEL.DEPTH=2", "MODEL.EMBED_DIM=32", "MODEL.NUM_HEADS=2", "MODEL.DROPOUT=0.1")


def write_images(folder):
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    for index in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / "images" / f"{index}.png")
    lines = [f"images/{index}.png {index % 10}\n" for index in range(IMAGES)]
    (folder / "train_list.txt").write_text("".join(lines))
    (folder / "val_list.txt").write_text("".join(lines[:2]))


@pytest.fixture(scope="module")
def whole_runs():
    """The folders of undisturbed runs, by what tells one from another."""
    return {}


def train(model, config, data, folder, *words, code=0, options=()):
    command = [sys.executable, "main_multi_gpu.py", "-ngpus=2", "-device=cpu", f"-cfg=./configs/{config}.yaml"]
    command += ["-dataset=imagenet2012", f"-data_path={data}", "-num_classes=10", "-num_epochs=1", "-deterministic"]
    command += [f"-accum_iter={WINDOW}", f"-output={folder}", *words, "-opts", "TRAIN.MODEL_EMA=True"]
    command += ["SAVE_STEPS=1"]  # replicas' statistics are averaged where a run saves
    done = subprocess.run([*command, *options], cwd=PACKAGE / model, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done


RESNET, VIT = ("ResNet", "resnet_tiny_digits", 2), ("ViT", "vit_tiny_digits", 1)  # replicas


@pytest.mark.parametrize(("model", "config", "replicas", "batch", "options"), [
    pytest.param(*RESNET, 0, ("DATA.NUM_WORKERS=0",), id="first", marks=SLOW),  # before the first step
    pytest.param(*RESNET, 3, ("DATA.NUM_WORKERS=0",), id="data", marks=SLOW),  # first of its window
    pytest.param(*RESNET, 4, ("DATA.NUM_WORKERS=1", "PARALLEL.SYNC_BN=True"), id="sync-bn"),
    pytest.param(*VIT, 4, ("DATA.NUM_WORKERS=1", "PARALLEL.TENSOR=2", *SMALL_VIT), id="tensor", marks=SLOW),
    pytest.param(*VIT, 4, ("DATA.NUM_WORKERS=1", "PARALLEL.PIPELINE=2", *SMALL_VIT), id="pipeline"),
])  # fmt: skip
def test_image_that_one_process_cannot_read_ends_all_and_a_resume_has_the_bits(
    tmp_path, whole_runs, model, config, replicas, batch, options
):
    data, size = tmp_path / "data", 4 // replicas  # six micro-batches, two steps
    write_images(data)
    run = (model, config, data)
    options = ("DATA.IMAGE_CHANNELS=3", "DATA.IMAGENET_MEAN=[0.5,0.5,0.5]", "DATA.IMAGENET_STD=[0.5,0.5,0.5]", *options)
    words = [f"-batch_size={size}"]
    if (model, options) not in whole_runs:
        train(*run, tmp_path / "whole", *words, options=options)
    whole = checkpoint.load(whole_runs.setdefault((model, options), tmp_path / "whole") / "latest.pdparams")
    order = train_order(IMAGES, 0, 0, size, replicas - 1, replicas)[:, 0]
    path = data / "images" / f"{order[batch * size + 1]}.png"
    content = path.read_bytes()
    path.write_bytes(content[:50])
    done = train(*run, tmp_path / "run", *words, code=2, options=options)
    assert "Traceback" not in done.stdout + done.stderr
    assert f"{path.name}: corrupt image" in done.stderr
    latest = tmp_path / "run" / "latest.pdparams"
    progress = checkpoint.load(latest)["progress"]
    assert (progress["batch"], progress["step"]) == ((WINDOW, 1) if batch else (0, 0))
    path.write_bytes(content)
    train(*run, tmp_path / "run", *words, f"-resume={latest}", options=options)
    resumed = checkpoint.load(latest)
    for part in ("model", "optimizer", "ema"):
        for name, value in whole[part].items():
            assert np.array_equal(value, resumed[part][name]), (part, name)
