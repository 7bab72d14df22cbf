"""Logits of each digits-sized model, and of forms of it that other variants have, of weights that NumPy draws: what a
model computes stays what it was when its variants were last compared with the peers.

    python -m tests.helpers.golden_logits       # writes tests/house/golden_logits.json anew
"""

import json
import zlib

import numpy as np
import paddle

from image_classification.config import load_config
from tests.helpers.model_zoo import CONFIGS, ROOT, build, builder

FILE = ROOT / "tests" / "house" / "golden_logits.json"
DIGITS = {path.stem.removesuffix("_digits"): path for path in CONFIGS if path.stem.endswith("_digits")}
# What is computed by published variants and by no digits-sized one.
FORMS = {
    "resnet_tiny bottleneck": {"block": "bottleneck", "groups": 2, "width_per_group": 32},
    "resnet_tiny d": {"block": "bottleneck", "small_stem": False, "stem_widths": (8, 8, 16), "pooled_shortcut": True},
    "convnextv2_tiny conv": {"conv_mlp": True},
    "eva02_tiny norm": {"mlp": "norm_swiglu", "separate_qkv": True},
    "eva02_tiny attention": {"attention_norm": True, "separate_qkv": True, "mlp": "split_swiglu"},
    "vit_tiny map": {"global_pool": "map", "class_token": False},
    "vit_tiny norms": {"pre_norm": True, "qk_norm": True, "layer_scale": 0.1, "swiglu": True, "norm_epsilon": 1e-3},
    "regnet_tiny preact": {"block": "preact", "activation": "silu"},
    "regnet_tiny linear": {"block": "linear", "pooled_shortcut": True},
    "maxvit_tiny mlp": {"design": "rw", "positions": "mlp", "layer_scale": 0.1, "pre_logits": False},
    "pvt_v2_tiny linear": {"linear_attention": True},
    "beit_tiny own": {"position_embedding": False, "layer_scale": None, "global_pool": "token"},
    "repvgg_tiny deploy": {"deploy": True},
}
CASES = [*DIGITS, *FORMS]


def logits_of(case):
    """Return the logits of two images, in evaluation, float32, by Paddle alone."""
    path = DIGITS[case.partition(" ")[0]]
    data, model = load_config([f"-cfg={path}"], builder(path.parents[1])).DATA, build(path, **FORMS.get(case, {}))
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
    """Return {case: logits}."""
    return {name: np.array(logits) for name, logits in json.loads(FILE.read_text()).items()}


def main():
    lines = []
    for case in CASES:
        logits = [[float(f"{value:.7g}") for value in row] for row in logits_of(case)]
        lines.append(f"{json.dumps(case)}: {json.dumps(logits)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
