"""What tests of recorded passes share: modes, images, bits of a result, what is known of a pass."""

import numpy as np
import paddle

from image_classification import half_cpu
from image_classification.half_cpu.scope import active

FORMATS = [("fp32", None), *(
    (mode, dtype) for mode in ("auto", "O2", "naive") for dtype in ("bfloat16", "float16")
    if half_cpu.backend_name(dtype) != "reference"
)]  # fmt: skip


def images(seed, batch=2, side=12):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal((batch, 3, side, side)).astype("float32"))


def bits(result):
    return [tensor.numpy().tobytes() for tensor in paddle.utils.flatten(result)]


def passes():
    """Return what is known of the shapes that came: a recorded pass, or a number."""
    return list(active.frozen.passes.values())
