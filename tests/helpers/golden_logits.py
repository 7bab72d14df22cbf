"""Logits of each family's smallest model, of weights that NumPy draws: what a model computes stays what it was when
its variants were last compared with the peers.

    python -m tests.helpers.golden_logits       # writes tests/house/golden_logits.json anew
"""

import json
import zlib

import numpy as np
import paddle

from image_classification.config import load_config
from tests.helpers.model_zoo import FOLDERS, ROOT, build, builder, digits_config

FILE = ROOT / "tests" / "house" / "golden_logits.json"


def logits_of(folder):
    """Return the logits of two images, in evaluation, float32, by Paddle alone."""
    path = digits_config(folder)
    data, model = load_config([f"-cfg={path}"], builder(folder)).DATA, build(path)
    model.eval()
    for name, weight in model.named_parameters():
        if not weight.stop_gradient:
            values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(weight.shape)
            start = 1.0 if name.endswith("weight") and len(weight.shape) == 1 else 0.0
            weight.set_value((start + values * 0.2).astype("float32"))
    shape = [2, data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE]
    images = np.random.default_rng(0).standard_normal(shape).astype("float32")
    with paddle.no_grad():
        return model(paddle.to_tensor(images)).numpy()


def read():
    """Return {family: logits}."""
    return {name: np.array(logits) for name, logits in json.loads(FILE.read_text()).items()}


def main():
    lines = []
    for folder in FOLDERS:
        logits = [[float(f"{value:.7g}") for value in row] for row in logits_of(folder)]
        lines.append(f"{json.dumps(folder.name)}: {json.dumps(logits)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
