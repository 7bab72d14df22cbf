"""What Paddle refuses is refused with a dispatch, too, in each format, by the same error: nothing else computes it."""

import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import onednn

FORMATS = ("float32", "float16", "bfloat16")
pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")

IMAGES, ROWS = (2, 8, 12, 12), (64, 600)


def batch_norm(**sizes):
    found = {"mean": 8, "variance": 8, "scale": 8, "shift": 8} | sizes

    def function(x):
        mean, variance, scale, shift = (paddle.ones([found[name]]) for name in ("mean", "variance", "scale", "shift"))
        return F.batch_norm(x, mean, variance, scale, shift, training=True)

    return function


def layer_norm(shape, *sizes):
    return lambda x: F.layer_norm(x, shape, *(paddle.ones([size], x.dtype) for size in sizes))


def layer_norm_of_tables(x):
    return F.layer_norm(x, IMAGES[2:], filters(x, *IMAGES[2:]), filters(x, *IMAGES[2:]))


def filters(x, *shape):
    return paddle.ones(shape, x.dtype)


CASES = {
    "batch_norm, few factors": (batch_norm(scale=5, shift=5), IMAGES),
    "batch_norm, few summands": (batch_norm(shift=5), IMAGES),
    "batch_norm, many factors": (batch_norm(scale=9, shift=9), IMAGES),
    "layer_norm, few factors": (layer_norm([600], 64), ROWS),
    "layer_norm, many factors": (layer_norm([600], 700), ROWS),
    "layer_norm, other summands": (layer_norm([600], 600, 599), ROWS),
    "layer_norm, factors in two axes": (layer_norm_of_tables, IMAGES),
    "layer_norm over all": (layer_norm([64, 600], 64 * 600), ROWS),
    "group_norm, few factors": (lambda x: F.group_norm(x, 2, weight=filters(x, 5), bias=filters(x, 5)), IMAGES),
    "conv2d without a stride": (lambda x: F.conv2d(x, filters(x, 8, 8, 3, 3), stride=0), IMAGES),
    "conv2d without a dilation": (lambda x: F.conv2d(x, filters(x, 8, 8, 3, 3), dilation=0), IMAGES),
    "conv2d of other channels": (lambda x: F.conv2d(x, filters(x, 8, 7, 3, 3)), IMAGES),
    "transposed without a stride": (lambda x: F.conv2d_transpose(x, filters(x, 8, 8, 3, 3), stride=0), IMAGES),
    "max_pool2d without a stride": (lambda x: F.max_pool2d(x, 3, stride=0), IMAGES),
    "avg_pool2d without a stride": (lambda x: F.avg_pool2d(x, 3, stride=0), IMAGES),
    "group_norm, groups below zero": (lambda x: F.group_norm(x, -1), IMAGES),
    "softmax over a broken axis": (lambda x: F.softmax(x, 1.0), IMAGES),
    "softmax over the last axis, true": (lambda x: F.softmax(x, True), ROWS),
    "log_softmax over a broken axis": (lambda x: F.log_softmax(x, 1.0), ROWS),
    "expand along an axis of no size": (lambda x: paddle.expand(x, [-1, *ROWS]), ROWS),
    "clip from NaN": (lambda x: paddle.clip(x, float("nan"), 0.5), ROWS),
    "clip to nothing": (lambda x: paddle.clip(x, 0.5, -0.5), ROWS),
    "reflection of all columns": (lambda x: F.pad(x, [12, 0, 0, 0], mode="reflect"), IMAGES),
    "pad of all axes by copies": (lambda x: F.pad(x, [2, 2, 0, 2, 2, 0], mode="replicate"), (5, 5, 7)),
    "bmm of single matrices": (lambda x: paddle.bmm(x, x), (8, 8)),
    "bmm of another number": (lambda x: paddle.bmm(x, filters(x, 1, 7, 8)), (5, 5, 7)),
    "matmul of other rows": (lambda x: paddle.matmul(x, filters(x, 64, 8)), ROWS),
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_wrong_argument_is_the_error_that_paddle_raises(case, dtype):
    function, shape = CASES[case]
    with pytest.raises(Exception) as expected:
        function(paddle.ones(shape))
    with half_cpu.dispatch(), pytest.raises(expected.type):
        function(paddle.ones(shape).astype(dtype))

