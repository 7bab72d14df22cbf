"""Pooling and padding of volumes: whatever of it a kernel serves, and what it leaves to Paddle."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu

CALLS = {
    "pool depth": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, (1, 0, 0)),
    "pool depth of padding on one side": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, [1, 0, 0, 0, 0, 0]),
    "pool depth of another divisor": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, divisor_override=2),
    "pool depth of channels last": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, data_format="NDHWC"),
    "pool depth to the same size": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, "SAME"),
    "pool all axes": lambda x: F.avg_pool3d(x, 2),
    "pool height": lambda x: F.avg_pool3d(x, (3, 2, 1), 1),
    "pool with steps along the width": lambda x: F.avg_pool3d(x, (3, 1, 1), (1, 1, 2)),
    "pool with padding of the width": lambda x: F.avg_pool3d(x, (3, 1, 1), 1, (0, 0, 1), exclusive=False),
    "pool maxima": lambda x: F.max_pool3d(x, (3, 1, 1), 1),
    "pool to a size": lambda x: F.adaptive_avg_pool3d(x, (3, 5, 4)),
    "pad depth": lambda x: F.pad(x, [0, 0, 0, 0, 2, 1]),
    "pad depth with ones": lambda x: F.pad(x, [0, 0, 0, 0, 2, 1], value=1.0),
    "pad depth by less than nothing": lambda x: F.pad(x, [0, 0, 0, 0, -1, 1]),
    "pad all axes": lambda x: F.pad(x, [1, 0, 2, 0, 2, 1]),
    "pad nothing": lambda x: F.pad(x, [0] * 6),
    **{f"pad depth, {mode}": lambda x, mode=mode: F.pad(x, [0, 0, 0, 0, 2, 1], mode=mode, data_format="NCDHW")
       for mode in ("reflect", "replicate", "circular")},
    **{f"pad lines, {mode}": lambda x, mode=mode: F.pad(x[:, 0], [2, 1], mode=mode, data_format="NCL")[:, :, 1:] * 2
       for mode in ("constant", "reflect", "replicate", "circular")},
    "pad lines of rows": lambda x: F.pad(x[:, 0].transpose([0, 2, 1]), [2, 0], data_format="NCL"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_volumes_are_pooled_and_padded_as_by_paddle(call):
    """In float32, but for the order in which the few numbers of a window are added."""
    paddle.seed(0)
    x = paddle.randn([2, 3, 6, 5, 4][: 4 if "lines" in call else 5])
    expected = CALLS[call](x.clone())
    with half_cpu.dispatch():
        found = CALLS[call](x.clone())
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=4 * 2.0**-23)
