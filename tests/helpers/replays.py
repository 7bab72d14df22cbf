"""What tests of recorded passes share: modes, bits of a result, what is known of a pass."""

import paddle

from image_classification import half_cpu
from image_classification.half_cpu.scope import active

FORMATS = [("fp32", None), *(
    (mode, dtype) for mode in ("auto", "O2", "naive") for dtype in ("bfloat16", "float16")
    if half_cpu.backend_name(dtype) != "reference"
)]  # fmt: skip


def bits(result):
    return [tensor.numpy().tobytes() for tensor in paddle.utils.flatten(result)]


def passes():
    """Return what is known of the shapes that came: a recorded pass, or a number."""
    return list(active.frozen.passes.values())
