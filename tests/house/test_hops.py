"""The way of one image through the project, from the disk to the update of the weights, as docs/design.md tells it."""

import re
import sys

import cv2
import numpy as np

import image_classification
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.parallel.single import SingleProcess
from image_classification.ViT.vit import build_model
from tests.helpers.model_zoo import PACKAGE, ROOT

# What computes inside an operator is no station of the image.
KERNELS = "half_cpu"


def stations(tmp_path):
    """Return the modules that run, one after the other, in the second training step of a ViT, of one image."""
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for index in range(2):
                cv2.imwrite(str(folder / f"{index}.png"), generator.integers(0, 255, (40, 40, 3), dtype=np.uint8))
    words = [
        f"-cfg={PACKAGE}/ViT/configs/vit_tiny_digits.yaml", "-amp", "-dataset=imagenet2012", f"-data_path={tmp_path}",
        "-num_classes=2", "-batch_size=1", "-opts", "DATA.NUM_WORKERS=0", "MODEL.DEPTH=1", "DATA.IMAGE_CHANNELS=3",
        "DATA.IMAGENET_MEAN=[0.5,0.5,0.5]", "DATA.IMAGENET_STD=[0.5,0.5,0.5]",
    ]  # fmt: skip
    trainer = build_trainer(build_parts(load_config(words, build_model), build_model, SingleProcess()))
    trainer.model.train()
    trainer.train_loader.set_epoch(0)
    batches = trainer.train_loader.iterate(0)
    trainer.train_step(batches, 1)
    package = f"{image_classification.__path__[0]}/"
    stack, seen = ["trainer"], []

    def watch(frame, event, argument):
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(package):
            return
        if event == "call":
            stack.append(frame.f_code.co_filename.removeprefix(package).removesuffix(".py"))
        else:
            stack.pop()
        if stack and not stack[-1].startswith(KERNELS) and seen[-1:] != stack[-1:]:
            seen.append(stack[-1])

    sys.setprofile(watch)
    try:
        trainer.train_step(batches, 1)
    finally:
        sys.setprofile(None)
    return seen


def test_stations_of_an_image_are_those_of_the_design_page(tmp_path):
    seen = stations(tmp_path)
    page = (ROOT / "docs/design.md").read_text()
    told = re.search(r"<!-- stations -->\n+```\n(.*?)```", page, re.S)[1]
    assert re.findall(r"[\w/]+", told) == list(dict.fromkeys(seen))
    # within a micro-batch nothing goes back and forth between the trainer and the processes' module
    assert not any(name.startswith("parallel") for name in seen)
