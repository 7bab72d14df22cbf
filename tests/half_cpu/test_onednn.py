"""The oneDNN kernels against the float32 reference, forward and backward."""

import collections
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.EVA02 import eva02
from image_classification.half_cpu import onednn, onednn_primitives, op_names

pytestmark = pytest.mark.skipif(
    onednn.instruction_set() is None, reason="needs a CPU with AVX512-BF16 or AMX and a wheel with oneDNN"
)

FLOAT16, BFLOAT16, FLOAT32 = "float16", "bfloat16", "float32"
HALVES = [dtype for dtype in (FLOAT16, BFLOAT16) if half_cpu.backend_name(dtype) != "reference"]
ALL = [*HALVES, FLOAT32]
ROUNDING = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}  # the distance of neighbours, relative to the smaller one


class Calls:
    """Counts the calls that a kernel served, so that no test compares the reference with itself."""

    def __init__(self, monkeypatch, *names):
        self.served = 0
        fast = half_cpu.kernels.find("onednn")
        table = dict(fast.kernels)
        for name in names:
            table[name] = self._counted(table[name])
        backend = half_cpu.kernels.Backend("counted", dict.fromkeys(HALVES, "counted"), table, fast.float32_kernels)
        monkeypatch.setitem(half_cpu.kernels._BACKENDS, "counted", lambda: backend)

    def _counted(self, kernel):
        def counted(original, args, kwargs):
            result = kernel(original, args, kwargs)
            self.served += result is not NotImplemented
            return result

        return counted


def tensors(shapes, dtype=BFLOAT16, seed=0, scale=1.0):
    """Return random leaf tensors that require gradients."""
    generator = np.random.default_rng(seed)
    values = [(generator.standard_normal(shape) * scale).astype("float32") for shape in shapes]
    result = [paddle.to_tensor(value).astype(dtype) for value in values]
    for tensor in result:
        tensor.stop_gradient = False
    return result


def statistics(channels):
    """Return a running mean and variance that no batch has."""
    return paddle.linspace(-0.5, 0.5, channels), paddle.linspace(0.5, 2.0, channels)


def run(function, inputs, backend):
    """Return (result, gradients of the inputs) with a fixed random gradient of the result."""
    for tensor in inputs:
        tensor.clear_gradient(False)
    with half_cpu.dispatch(backend=backend):
        result = function(*inputs)
    seed = paddle.to_tensor(np.random.default_rng(1).standard_normal(result.shape).astype("float32"))
    paddle.autograd.backward([result], [seed.astype(result.dtype)])
    gradients = [tensor.grad for tensor in inputs]
    return result, [None if gradient is None else gradient.clone() for gradient in gradients]


def assert_within_one_rounding(actual, expected, intermediates=0):
    """Both were summed in float32, in another order, and rounded once: neighbours at most.

    Where a sum cancels, its float32 error counts relative to the summands: 2^-16 of the largest value. Each rounded
    intermediate (probabilities in a backward pass) is allowed one more rounding of the largest value.
    """
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    rounding = ROUNDING[str(expected.dtype).removeprefix("paddle.")]
    actual, expected = actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy()
    largest = np.abs(expected).max()
    bound = rounding * np.abs(expected) + max(intermediates * rounding, 2.0**-16) * largest
    assert (np.abs(actual - expected) <= bound).all(), (np.abs(actual - expected) / bound).max()


def angles(tokens, channels):
    """Return sine and cosine of other angles for each channel."""
    values = paddle.linspace(-7.0, 9.0, tokens * channels).reshape([tokens, 1, channels])
    return values.sin(), values.cos()


def shuffle(x):
    """Return images with the channels of three groups mixed, as ShuffleNet does it."""
    x = x.reshape([x.shape[0], 3, x.shape[1] // 3, *x.shape[2:]]).transpose([0, 2, 1, 3, 4])
    return x.reshape([x.shape[0], -1, *x.shape[3:]])


def drop_middle(x):
    """Return three samples without the middle one, as a drop path may do it."""
    return x * paddle.to_tensor([1.25, 0.0, 1.25]).astype(x.dtype).reshape([3] + [1] * (x.ndim - 1))


CASES = {
    "linear": ("linear", lambda x, w, b: F.linear(x, w, b), [(3, 5, 32), (32, 48), (48,)], False),
    "linear-no-bias": ("matmul", lambda x, w: paddle.matmul(x, w), [(3, 5, 32), (32, 48)], False),
    "linear-odd-sizes": ("linear", lambda x, w, b: F.linear(x, w, b), [(7, 13), (13, 11), (11,)], False),
    "linear-size-one": ("linear", lambda x, w, b: F.linear(x, w, b), [(1, 1), (1, 1), (1,)], False),
    "linear-packed": ("linear", lambda x, w, b: F.linear(x, w, b), [(2, 75, 96), (96, 160), (160,)], False),
    "linear-packed-odd": ("linear", lambda x, w, b: F.linear(x, w.T, b), [(131, 67), (129, 67), (129,)], False),
    "linear-vector": ("linear", lambda x, w, b: F.linear(x, w, b), [(32,), (32, 48), (48,)], False),
    "linear-strided": (
        "linear", lambda x, w, b: F.linear(x.transpose([1, 0, 2]), w, b), [(3, 5, 8), (8, 4), (4,)], False),
    "linear-weight-strided": ("linear", lambda x, w, b: F.linear(x, w.T, b), [(3, 8), (4, 8), (4,)], False),
    "matmul-batched": ("matmul", lambda x, y: paddle.matmul(x, y), [(2, 3, 5, 8), (2, 3, 8, 7)], False),
    "matmul-right": ("matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), [(2, 3, 5, 8), (2, 3, 7, 8)], False),
    "matmul-left": ("matmul", lambda x, y: paddle.matmul(x, y, transpose_x=True), [(2, 8, 5), (2, 8, 7)], False),
    "matmul-both": ("matmul", lambda x, y: paddle.matmul(x, y, True, True), [(2, 8, 5), (2, 7, 8)], False),
    "matmul-rows": ("matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), [(2, 3, 5, 8), (7, 8)], False),
    "matmul-rows-packed": (
        "matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), [(2, 75, 96), (160, 96)], False),
    "matmul-strided": ("matmul", lambda x, y: x.transpose([0, 2, 1]) @ y, [(2, 8, 5), (2, 8, 7)], False),
    "gelu": ("gelu", lambda x: F.gelu(x), [(3, 5, 33)], False),
    "gelu-tanh": ("gelu", lambda x: F.gelu(x, approximate=True), [(3, 5, 33)], False),
    "gelu-strided": ("gelu", lambda x: F.gelu(x.transpose([1, 0])), [(5, 33)], False),
    "gelu-layer": ("gelu", paddle.nn.GELU("tanh"), [(3, 5, 33)], False),
    "relu": ("relu", lambda x: F.relu(x), [(3, 5, 33)], False),
    "relu-scalar": ("relu", lambda x: F.relu(x), [()], False),
    "add": ("add", lambda x, y: x + y, [(3, 5, 33), (3, 5, 33)], False),
    "add-function": ("add", lambda x, y: paddle.add(x, y), [(5, 33), (33,)], False),
    "add-strided": ("add", lambda x, y: x + y.transpose([1, 0]), [(3, 5), (5, 3)], False),
    "add-row": ("add", lambda x, y: x + y, [(3, 5, 33), (33,)], False),
    "add-row-first": ("add", lambda x, y: y + x, [(3, 5, 33), (1, 5, 33)], False),
    "add-row-strided": ("add", lambda x, y: x + y.transpose([1, 0]), [(3, 5, 33), (33, 5)], False),
    "add-channels": (
        "add", lambda x, w, b: F.conv2d(x, w, b, padding=1), [(2, 16, 9, 7), (24, 16, 3, 3), (24,)], True),
    "multiply-row": ("multiply", lambda x, y: x * y, [(3, 5, 33), (33,)], True),
    "multiply-row-first": ("multiply", lambda x, y: y * x, [(3, 5, 33), (1, 5, 33)], True),
    "multiply-channels": (
        "multiply", lambda x, w, y: F.conv2d(x, w, padding=1) * y, [(2, 8, 9, 7), (24, 8, 3, 3), (1, 24, 1, 1)], True),
    "rearrange": (
        "rearrange", lambda x: layers.rearrange(x, [2, 3, 4, 5, 7], [0, 3, 2, 1, 4], [40, 21]), [(2, 12, 35)], False),
    "rearrange-strided": (
        "rearrange", lambda x: layers.rearrange(x.transpose([1, 0]), [3, 4, 5], [2, 0, 1], [5, 12]), [(5, 12)], False),
    "conv": ("conv2d", lambda x, w: F.conv2d(x, w, padding=1), [(2, 16, 9, 7), (24, 16, 3, 3)], False),
    "conv-stride": ("conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=3), [(2, 3, 17, 15), (8, 3, 7, 7)], False),
    "conv-patches": ("conv2d", lambda x, w: F.conv2d(x, w, stride=4), [(2, 3, 16, 16), (20, 3, 4, 4)], False),
    "conv-1x1": ("conv2d", lambda x, w: F.conv2d(x, w, stride=2), [(2, 16, 9, 7), (24, 16, 1, 1)], False),
    "conv-1x1-large": ("conv2d", lambda x, w: F.conv2d(x, w), [(2, 512, 3, 2), (520, 512, 1, 1)], False),
    "conv-groups": ("conv2d", lambda x, w: F.conv2d(x, w, groups=2), [(2, 16, 9, 7), (24, 8, 3, 3)], False),
    "conv-dilated": ("conv2d", lambda x, w: F.conv2d(x, w, dilation=2), [(2, 5, 9, 7), (6, 5, 3, 3)], False),
    "conv-depthwise": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=16, padding=1), [(2, 16, 9, 7), (16, 1, 3, 3)], False),
    "conv-uneven-padding": ("conv2d", lambda x, w: F.conv2d(x, w, padding=[1, 0, 2, 1]), [(2, 4, 5, 5), (4, 4, 3, 3)],
                            False),
    "conv-same": (
        "conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding="SAME"), [(2, 4, 8, 9), (6, 4, 5, 3)], False),
    "conv-depthwise-same": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding="SAME", groups=8),
        [(2, 8, 10, 7), (8, 1, 3, 3)], False),
    "conv-one-pixel": ("conv2d", lambda x, w: F.conv2d(x, w), [(1, 1, 1, 1), (1, 1, 1, 1)], False),
    "conv-chain": ("conv2d", lambda x, w: F.relu(F.conv2d(F.conv2d(x, w), w)) + 0, [(2, 8, 9, 7), (8, 8, 3, 3)], True),
    "conv-residual": ("add", lambda x, w: x + F.conv2d(x, w, padding=1), [(2, 8, 9, 7), (8, 8, 3, 3)], False),
    "max_pool": ("pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), [(2, 16, 9, 7)], True),
    "avg_pool": ("pool2d", lambda x: F.avg_pool2d(x, 2), [(2, 16, 8, 6)], False),
    "avg_pool-padded": ("pool2d", lambda x: F.avg_pool2d(x, 3, 3, 1, exclusive=False), [(2, 16, 8, 6)], False),
    "avg_pool-padding-left-out": ("pool2d", lambda x: F.avg_pool2d(x, 3, 3, 1, exclusive=True), [(2, 16, 8, 6)], False),
    "avg_pool-whole": ("pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), [(2, 16, 8, 6)], False),
    "batch_norm": (
        "batch_norm", lambda x, w, b: F.batch_norm(x, *statistics(8), w, b, training=True), [(4, 8, 5, 3), (8,), (8,)],
        True),
    "batch_norm-evaluation": (
        "batch_norm", lambda x, w, b: F.batch_norm(x, *statistics(8), w, b), [(4, 8, 5, 3), (8,), (8,)], False),
    "batch_norm-after-conv": (
        "batch_norm", lambda x, w, s, b: F.batch_norm(F.conv2d(x, w), *statistics(8), s, b, training=True),
        [(4, 8, 5, 3), (8, 8, 1, 1), (8,), (8,)], True),
    "softmax": ("softmax", lambda x: F.softmax(x), [(3, 5, 33)], True),
    "softmax-size-one": ("softmax", lambda x: F.softmax(x, axis=1), [(3, 1)], True),
    "layer_norm": ("layer_norm", lambda x, w, b: F.layer_norm(x, 33, w, b, 1e-6), [(3, 5, 33), (33,), (33,)], False),
    "layer_norm-two-axes": (
        "layer_norm", lambda x, w, b: F.layer_norm(x, [5, 33], w, b, 1e-6), [(3, 5, 33), (165,), (165,)], False),
    "layer_norm-without-shift": (
        "layer_norm", lambda x, w: F.layer_norm(x, 33, w, None, 1e-6), [(3, 5, 33), (33,)], False),
    "attention": ("attention", lambda qkv: layers.attention(qkv, 4, 0.25), [(2, 13, 3 * 4 * 16)], True),
    "attention-bias": (
        "attention", lambda qkv, bias: layers.attention(qkv, 4, 0.25, None, bias), [(2, 13, 192), (1, 4, 13, 13)],
        True),
    "attention-biases": (
        "attention", lambda qkv, bias: layers.attention(qkv, 2, 0.25, bias=bias), [(6, 5, 3 * 2 * 8), (3, 2, 5, 5)],
        True),
    "hardswish": ("hardswish", lambda x: F.hardswish(x * 4), [(3, 5, 33)], False),
    "hardsigmoid": ("hardsigmoid", lambda x: F.hardsigmoid(x), [(3, 5, 33)], False),
    "leaky_relu": ("leaky_relu", lambda x: F.leaky_relu(x, 0.1), [(3, 5, 33)], False),
    "relu6": ("relu6", lambda x: F.relu6(x), [(3, 5, 33)], False),
    "sigmoid": ("sigmoid", lambda x: F.sigmoid(x), [(3, 5, 33)], True),
    "sigmoid-layer": ("sigmoid", paddle.nn.Sigmoid(), [(3, 5, 33)], True),
    "silu": ("silu", lambda x: F.silu(x), [(3, 5, 33)], False),
    "swish": ("swish", lambda x: F.swish(x), [(5, 33)], False),
    "tanh": ("tanh", lambda x: F.tanh(x), [(3, 5, 33)], True),
    "scale": ("scale", lambda x: x * 0.3 + 1, [(3, 5, 33)], False),
    "scale-strided": ("scale", lambda x: x.transpose([1, 0]) * 0.3, [(5, 33)], False),
    "multiply": ("multiply", lambda x, y: x * y, [(3, 5, 33), (3, 5, 33)], False),
    "multiply-gate": ("multiply", lambda x, y: x * y, [(2, 8, 9, 7), (2, 8, 1, 1)], False),
    "multiply-gate-after-conv": (
        "multiply", lambda x, w, y: y * F.conv2d(x, w, padding=1), [(2, 8, 9, 7), (24, 8, 3, 3), (2, 24, 1, 1)], True),
    "multiply-strided": (
        "scale", lambda x, y: (x * 0.5).transpose([1, 0, 2]) * y, [(3, 5, 33), (3, 1)], True),
    "multiply-column": ("multiply", lambda x, y: x * y, [(3, 5, 33), (3, 5, 1)], False),
    "multiply-one-number": ("multiply", lambda x, y: x * y, [(3, 5, 33), (1,)], False),
    "add-channels-of-rows": ("add", lambda x, y: x + y, [(2, 8, 9, 7), (1, 8, 1, 1)], False),
    "add-column": ("add", lambda x, y: x + y, [(5, 33), (5, 1)], False),
    "concat": ("concat", lambda x, y: paddle.concat([x, y, x], axis=-1), [(3, 5, 33), (3, 5, 7)], False),
    "concat-rows": ("concat", lambda x, y: paddle.concat([x, y]), [(3, 5), (2, 5)], False),
    "concat-after-conv": (
        "concat", lambda x, w: paddle.concat([F.conv2d(x, w, padding=1), x], axis=1), [(2, 8, 9, 7), (5, 8, 3, 3)],
        False),
    "depthwise-stride": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, stride=2, groups=24, padding=2),
        [(2, 24, 19, 17), (24, 1, 5, 5)], False),
    "depthwise-wide": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=40, padding=3), [(2, 40, 12, 21), (40, 1, 7, 7)], False),
    "subtract": ("subtract", lambda x, y: x - y, [(3, 5, 33), (3, 5, 33)], False),
    "subtract-row-first": ("subtract", lambda x, y: y - x, [(3, 5, 33), (5, 1)], False),
    "subtract-column": ("subtract", lambda x, y: x - y, [(3, 5, 33), (3, 5, 1)], False),
    "divide-column": ("divide", lambda x, y: x / y, [(3, 5, 33), (3, 5, 1)], False),
    "divide-channels-after-conv": (
        "divide", lambda x, w, y: F.conv2d(x, w) / y, [(2, 8, 5, 7), (24, 8, 1, 1), (1, 24, 1, 1)], True),
    "abs": ("abs", lambda x: x.abs(), [(3, 5, 33)], False),
    "clip": ("clip", lambda x: x.clip(-0.5, 0.7), [(3, 5, 33)], False),
    "elu": ("elu", lambda x: F.elu(x, 0.7), [(3, 5, 33)], False),
    "exp": ("exp", lambda x: x.exp(), [(3, 5, 33)], True),
    "mish": ("mish", lambda x: F.mish(x * 4), [(3, 5, 33)], False),
    "pow": ("pow", lambda x: x**2, [(3, 5, 33)], False),
    "rsqrt": ("rsqrt", lambda x: (x.square() + 0.3).rsqrt(), [(3, 5, 33)], True),
    "sqrt": ("sqrt", lambda x: (x.square() + 0.3).sqrt(), [(3, 5, 33)], True),
    "square": ("square", lambda x: x.square(), [(5, 33)], False),
    "mean": ("mean", lambda x: x.mean(), [(3, 5, 33)], False),
    "mean-tokens": ("mean", lambda x: x.mean(1), [(3, 5, 33)], False),
    "mean-outer-axes": ("mean", lambda x: x.mean([0, 2], keepdim=True), [(3, 5, 33, 2)], False),
    "mean-places-after-conv": ("mean", lambda x, w: F.conv2d(x, w).mean([2, 3]), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "mean-batch-after-conv": ("mean", lambda x, w: F.conv2d(x, w).mean(0), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "sum": ("sum", lambda x: x.sum(-1), [(3, 5, 33)], False),
    "sum-channels-after-conv": (
        "sum", lambda x, w: F.conv2d(x, w).sum(1, keepdim=True), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "sum-size-one": ("sum", lambda x: x.sum(), [(1,)], False),
    "softmax-tokens": ("softmax", lambda x: F.softmax(x, axis=1), [(3, 5, 33)], True),
    "softmax-first-axis": ("softmax", lambda x: F.softmax(x, axis=0), [(3, 5)], True),
    "softmax-channels-after-conv": (
        "softmax", lambda x, w: F.softmax(F.conv2d(x, w), axis=1), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "softmax-columns-after-conv": (
        "softmax", lambda x, w: F.softmax(F.conv2d(x, w), axis=2), [(2, 8, 5, 7), (35, 8, 1, 1)], True),
    "group_norm": (
        "group_norm", lambda x, w, b: F.group_norm(x, 4, 1e-5, w, b), [(2, 24, 5, 7), (24,), (24,)], True),
    "group_norm-planes": (
        "group_norm", lambda x, w, b: F.group_norm(x, 3, 1e-5, w, b), [(2, 6, 35), (6,), (6,)], True),
    "group_norm-after-conv": (
        "group_norm", lambda x, w, s, b: F.group_norm(F.conv2d(x, w), 2, 1e-5, s, b),
        [(2, 8, 5, 7), (90, 8, 1, 1), (90,), (90,)], True),
    "instance_norm": (
        "instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(2, 24, 5, 7), (24,), (24,)], True),
    "instance_norm-after-conv": (
        "instance_norm", lambda x, w, s, b: F.instance_norm(F.conv2d(x, w), weight=s, bias=b),
        [(2, 8, 5, 7), (90, 8, 1, 1), (90,), (90,)], True),
    "avg_pool-overlapping": ("pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 16, 9, 7)], False),
    "avg_pool-ceil": ("pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), [(2, 16, 8, 7)], False),
    "avg_pool-after-conv": (
        "pool2d", lambda x, w: F.avg_pool2d(F.conv2d(x, w), 3, 1, 1), [(2, 8, 5, 7), (40, 8, 1, 1)], True),
    "avg_pool-adaptive": ("pool2d", lambda x: F.adaptive_avg_pool2d(x, [4, 5]), [(2, 16, 9, 7)], False),
    "max_pool-ceil": ("pool2d", lambda x: F.max_pool2d(x, 3, 2, 0, ceil_mode=True), [(2, 16, 8, 6)], True),
    "interpolate-nearest": ("nearest_interp", lambda x: F.interpolate(x, scale_factor=2), [(2, 5, 4, 3)], False),
    "interpolate-nearest-down": ("nearest_interp", lambda x: F.interpolate(x, [3, 5]), [(2, 5, 7, 17)], False),
    "interpolate-bilinear": (
        "bilinear_interp", lambda x: F.interpolate(x, [9, 40], mode="bilinear"), [(2, 5, 4, 18)], False),
    "interpolate-bilinear-corners-after-conv": (
        "bilinear_interp", lambda x, w: F.interpolate(F.conv2d(x, w), [7, 5], mode="bilinear", align_corners=True),
        [(2, 8, 5, 7), (40, 8, 1, 1)], True),
    "interpolate-bilinear-mode-1": (
        "bilinear_interp", lambda x: F.interpolate(x, scale_factor=[1.5, 2], mode="bilinear", align_mode=1),
        [(2, 5, 4, 18)], False),
    "interpolate-bicubic": (
        "bicubic_interp", lambda x: F.interpolate(x, [9, 7], mode="bicubic"), [(2, 5, 4, 18)], False),
    "pad": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0]), [(2, 5, 4, 18)], False),
    "pad-after-conv": ("pad3d", lambda x, w: F.pad(F.conv2d(x, w), [0, 1, 0, 1]), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "unsqueeze-after-conv": (
        "unsqueeze", lambda x, w: F.conv2d(x, w).unsqueeze([0, -2]), [(2, 8, 5, 7), (5, 8, 1, 1)], True),
    "squeeze-strided": ("squeeze", lambda x: x.transpose([1, 0, 2]).squeeze(1), [(1, 5, 33)], False),
    "squeeze-unsqueeze": (
        "squeeze", lambda x: F.relu(x.transpose([2, 0, 1]).unsqueeze(2).squeeze(-2)), [(3, 5, 33)], False),
    "pad-all-axes": ("pad", lambda x: F.pad(x, [0, 0, 0, 0, 1, 2, 0, 3]), [(2, 5, 4, 3)], False),
    "pad-reflect": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0], mode="reflect"), [(2, 5, 4, 18)], False),
    "pad-replicate": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0], mode="replicate"), [(2, 5, 4, 3)], False),
    "pad-circular": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0], mode="circular"), [(2, 5, 4, 3)], False),
    "conv-transposed": (
        "conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=2, padding=1),
        [(2, 6, 5, 4), (6, 7, 4, 4)], False),
    "conv-transposed-further-rows": (
        "conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=2, padding=1, output_padding=1),
        [(2, 6, 5, 4), (6, 7, 3, 3)], False),
    "conv-transposed-size": (
        "conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=3, output_size=[17, 13]),
        [(2, 6, 5, 4), (6, 7, 3, 3)], False),
    "conv-transposed-groups": (
        "conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, groups=2, dilation=2),
        [(2, 6, 5, 4), (6, 5, 3, 3)], False),
    "conv-transposed-depthwise": (
        "depthwise_conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=2, groups=6),
        [(2, 6, 5, 4), (6, 1, 2, 2)], False),
    "concat-channels-of-images": (
        "concat", lambda x, w: paddle.concat(F.conv2d(x, w).split([3, 21], axis=1)[::-1], axis=1),
        [(2, 8, 5, 7), (24, 8, 1, 1)], True),
    "split-after-conv": (
        "split", lambda x, w: F.conv2d(x, w).split([3, 21], axis=1)[1], [(2, 8, 5, 7), (24, 8, 1, 1)], True),
    "split-chunks-after-conv": (
        "split_with_num", lambda x, w: paddle.add(*F.conv2d(x, w).chunk(2, axis=1)),
        [(2, 8, 5, 7), (24, 8, 1, 1)], True),
    "split": ("split", lambda x: x.split([2, -1, 11], axis=-1)[1], [(3, 5, 33)], False),
    "split-strided": ("split_with_num", lambda x: x.transpose([1, 2, 0]).chunk(3, axis=1)[2], [(3, 5, 33)], False),
    "channel-shuffle-after-conv": (
        "reshape", lambda x, w: shuffle(F.conv2d(x, w)), [(2, 8, 5, 7), (24, 8, 1, 1)], True),
    "reshape-strided": ("reshape", lambda x: x.transpose([1, 0, 2]).reshape([-1, 11]), [(3, 5, 33)], False),
    "reshape-of-a-part": ("reshape", lambda x: x[..., 1:4].reshape([0, -1]), [(3, 5, 33)], False),
    "reshape-after-conv": ("reshape", lambda x, w: F.conv2d(x, w).reshape([2, 120, 7]), [(2, 8, 5, 7), (24, 8, 1, 1)],
                           True),
    "rotary-halves": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(5, 20), 3, True), [(2, 5, 3 * 3 * 20)], False),
    "rotary-neighbours": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(5, 20), 3, False), [(2, 5, 3 * 3 * 20)], False),
    "rotary-pair-of-one-token": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(1, 2), 1, False), [(1, 1, 3 * 2)], False),
    "reshape-view": ("reshape", lambda x: x.reshape([8, 65, -1]).transpose([0, 2, 1]), [(4, 130, 65)], False),
    "reshape-view-of-images": (
        "reshape", lambda x, w: F.conv2d(x.transpose([0, 2, 1]).reshape([2, 8, 45, 47]), w),
        [(2, 45 * 47, 8), (5, 8, 1, 1)], True),
    "flatten-after-conv": (
        "flatten", lambda x, w: F.conv2d(x, w).flatten(-2).transpose([0, 2, 1]), [(2, 8, 45, 47), (9, 8, 1, 1)], True),
    "part": (op_names.GET_ITEM, lambda x: x[:, 1:].transpose([1, 0, 2]), [(4, 130, 65)], False),
    "part-one": (op_names.GET_ITEM, lambda x: x[-1], [(4, 130, 65)], False),
    "part-of-all-axes": (op_names.GET_ITEM, lambda x: x[1:3, None, ..., 5, -9:-1], [(4, 130, 65)], False),
    "part-strided": (op_names.GET_ITEM, lambda x: x.transpose([2, 0, 1])[3:, 1], [(4, 130, 65)], False),
    "residual": ("residual", lambda x, y, s: layers.residual(x, y, s), [(3, 5, 33), (3, 5, 33), (33,)], False),
    "residual-strided": (
        "residual", lambda x, y, s: layers.residual(x, y.transpose([0, 2, 1]), s, drop_middle),
        [(3, 5, 33), (3, 33, 5), (1, 1, 33)], False),
    "residual-drop-path": (
        "residual", lambda x, y: layers.residual(x, y, drop_path=drop_middle), [(3, 5, 33), (3, 5, 33)], False),
    "residual-images": (
        "residual", lambda x, w, s: layers.residual(x, F.conv2d(x, w, padding=1), s, drop_middle),
        [(3, 8, 9, 7), (8, 8, 3, 3), (8, 1, 1)], True),
    "residual-many-rows": ("residual", lambda x, y, s: layers.residual(x, y, s), [(2100, 9), (2100, 9), (9,)], False),
    "residual-one-row": ("residual", lambda x, y, s: layers.residual(x, y, s), [(1, 1, 2), (1, 1, 2), (2,)], False),
    "scale_shift": (
        "scale_shift", lambda x, s, t: layers.scale_shift(x, s, t), [(3, 5, 33), (1, 1, 33), (33,)], False),
    "dot-product": ("dot_product_attention", F.scaled_dot_product_attention, [(2, 13, 3, 8)] * 3, True),
    "dot-product-causal": (
        "dot_product_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 13, 3, 8)] * 3, True),
    "dot-product-mask": (
        "dot_product_attention", F.scaled_dot_product_attention,
        [(2, 13, 3, 8), (2, 9, 3, 8), (2, 9, 3, 8), (1, 3, 13, 9)], True),
    "attention-one-token": ("attention", lambda qkv: layers.attention(qkv, 2, 0.3), [(2, 1, 3 * 2 * 8)], True),
}


# A half tensor first, then float32 ones.
MIXED = {
    "residual-in-float32": ("residual", lambda y, x, s: layers.residual(x, y, s), [(3, 5, 33), (3, 5, 33), (33,)]),
    "residual-without-scale": ("residual", lambda y, x: layers.residual(x, y), [(3, 5, 33), (3, 5, 33)]),
    "residual-scale": (
        "residual", lambda y, s: layers.residual(paddle.ones_like(y), y, s, drop_middle), [(3, 5, 33), (33,)]),
    "scale_shift": ("scale_shift", lambda x, s, t: layers.scale_shift(x, s, t), [(3, 5, 33), (33,), (33,)]),
    "add": ("add", lambda x, y: y + x, [(3, 5, 33), (3, 5, 33)]),
    "add-strided": ("add", lambda x, y: x.transpose([1, 0]) + y, [(5, 33), (33, 5)]),
    "add-row": ("add", lambda x, y: x + y, [(3, 5, 33), (1, 5, 33)]),
    "add-channels": (
        "add", lambda x, y: F.max_pool2d(x, 1) + y, [(2, 24, 9, 7), (1, 24, 1, 1)]),
    "multiply-row": ("multiply", lambda x, y: x * y, [(3, 5, 33), (33,)]),
}
# The reference rounds between the operators that a kernel computes as one (scores and biased scores; a product, what
# drop path makes of it, and a sum): each of them is allowed one more rounding.
FEWER_ROUNDINGS = {"attention-bias", "attention-biases", "scale_shift"} | {
    case for case in CASES if case.startswith(("residual", "dot-product"))
}
# What is added to, or multiplied, is a convolution's result that was rounded before.
AFTER_CONVOLUTION = {"add-channels", "multiply-channels", "conv-residual", "residual-images"}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_kernel_against_reference_differs_by_at_most_one_rounding(case, dtype, monkeypatch):
    name, function, shapes, rounded_intermediate = CASES[case]
    calls = Calls(monkeypatch, name)
    inputs = tensors(shapes, dtype)
    expected, expected_gradients = run(function, inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served
    further = 2 if case in FEWER_ROUNDINGS else int(case in AFTER_CONVOLUTION)
    assert_within_one_rounding(actual, expected, further)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_within_one_rounding(gradient, expected_gradient, further or int(rounded_intermediate))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])  # oneDNN is asked for nothing in float16
@pytest.mark.parametrize("case", CASES)
def test_kernel_never_takes_the_slow_reference_code_of_onednn(case, dtype, monkeypatch):
    """oneDNN computes what it has no kernel for by scalar loops, up to a hundred times slower, and does not say so."""
    name, function, shapes, _ = CASES[case]
    entries = collections.OrderedDict()
    monkeypatch.setattr(onednn_primitives.cache, "_entries", entries)
    run(function, tensors(shapes, dtype), "onednn")
    assert entries or name in onednn.COMPILED_KERNELS or "squeeze" in name
    assert [key for key, entry in entries.items() if entry.implementation.startswith("ref")] == []


@pytest.mark.parametrize("case", CASES)
def test_float32_kernel_against_paddle_agrees_to_float32_accuracy(case, monkeypatch):
    name, function, shapes, _ = CASES[case]
    calls = Calls(monkeypatch, name)
    inputs = tensors(shapes, FLOAT32)
    expected, expected_gradients = run(function, inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served
    # 1e-5 of the largest value: sums of up to 165 float32 terms and oneDNN's erf and exp, good to 2^-20
    for one, other in zip([actual, *gradients], [expected, *expected_gradients], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("case", CASES)
def test_result_without_a_backward_pass_is_freed(case):
    """A PyLayer that keeps the very tensor it returns is kept by it, for ever."""
    _, function, shapes, _ = CASES[case]
    inputs = tensors(shapes, FLOAT32)
    held = []
    for _ in range(3):
        with half_cpu.dispatch(backend="onednn"):
            result = function(*inputs)
        assert not result.stop_gradient
        del result
        held.append(paddle.base.core.host_memory_stat_current_value("Allocated", 0))
    assert held[2] <= held[1]  # the first call builds what is kept for others


def test_cast_to_bfloat16_equals_paddle_bit_for_bit():
    values = np.concatenate([
        np.random.default_rng(0).standard_normal(1000).astype("float32") * 10.0 ** np.arange(-30, 20).repeat(20),
        [0.0, -0.0, np.inf, -np.inf, 3.3895e38, 1.00390625, 1.01171875],  # largest, and ties to even
    ]).astype("float32")
    x = paddle.to_tensor(values)
    result = onednn.KERNELS["cast"](None, (x, paddle.bfloat16), {})
    assert (result.view("int16").numpy() == x.astype(BFLOAT16).view("int16").numpy()).all()
    back = onednn.KERNELS["cast"](None, (result, paddle.float32), {})
    assert (back.numpy() == result.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_kernel_with_inf_and_nan_hides_neither(case, dtype):
    _, function, shapes, _ = CASES[case]
    inputs = tensors(shapes, dtype)
    values = inputs[0].detach().astype(FLOAT32).numpy().copy()
    values.reshape(-1)[[0, -1]] = np.inf, np.inf if case.startswith("max_pool") else np.nan  # a maximum ignores NaN
    inputs[0] = paddle.to_tensor(values).astype(dtype)
    inputs[0].stop_gradient = False
    expected, _ = run(function, inputs, "reference")
    actual, _ = run(function, inputs, "onednn")
    actual, expected = actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy()
    # Whether inf or NaN comes out depends on the order of the terms. Of a softmax row with NaN oneDNN makes 0 and NaN,
    # Paddle NaN throughout; of one with inf oneDNN makes NaN, Paddle finite numbers. A check must find every such row.
    axis = 1 if case.startswith("softmax-channels") else -1
    assert (np.isfinite(actual).all(axis=axis) <= np.isfinite(expected).all(axis=axis)).all()


@pytest.mark.parametrize(
    "name, shapes, constants",
    [
        ("conv2d", [(0, 3, 8, 8), (4, 3, 3, 3)], ([1, 1], [0, 0], "EXPLICIT", [1, 1], 1, "NCHW")),
        ("linear", [(0, 8), (8, 4), (4,)], ()),
        ("matmul", [(2, 0, 8), (2, 8, 4)], ()),
        ("gelu", [(0, 3)], ()),
        ("relu", [(0, 3)], ()),
        ("softmax", [(2, 0)], (-1,)),
        ("add", [(0,), (0,)], ()),
        ("layer_norm", [(0, 3), (3,), (3,)], (1e-6, 1)),
        ("attention", [(2, 0, 24)], (2, 0.5)),
        ("dot_product_attention", [(2, 0, 3, 8)] * 3, ()),
        ("cast", [(0, 3)], (paddle.float32,)),
        ("hardswish", [(0, 3)], ()),
        ("multiply", [(2, 0), (2, 1)], ()),
    ],
)
def test_kernel_of_empty_tensors_leaves_them_to_the_reference(name, shapes, constants):
    for dtype in HALVES:
        inputs = [paddle.zeros(shape, dtype=dtype) for shape in shapes]
        kernel = half_cpu.kernels.find("onednn").kernels[name]
        assert kernel(None, (*inputs, *constants), {}) is NotImplemented


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_softmax_over_another_axis_is_paddles(dtype):
    (x,) = tensors([(3, 5, 33)])
    (expected,) = tensors([(3, 5, 33)], FLOAT32)
    with half_cpu.dispatch(backend="onednn"):
        result = F.softmax(x.detach().astype(dtype), axis=1).astype(FLOAT32)
    expected = F.softmax(expected.detach().astype(dtype).astype(FLOAT32), axis=1)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), atol=2.0**-9)  # one rounding to bfloat16, below 1


@pytest.mark.parametrize("dtype", HALVES)
def test_dropout_leaves_out_the_elements_that_the_reference_leaves_out(dtype, monkeypatch):
    calls = Calls(monkeypatch, "dropout")
    inputs = tensors([(3, 5, 333)], dtype)
    results = []
    for backend in ("reference", "counted"):
        paddle.seed(1)
        results.append(run(lambda x: F.dropout(x, 0.3), inputs, backend))
    assert calls.served == 1
    (expected, (expected_gradient,)), (actual, (gradient,)) = results
    assert_within_one_rounding(actual, expected)
    assert_within_one_rounding(gradient, expected_gradient)
    assert 0.65 < float((actual != 0).astype(FLOAT32).mean()) < 0.75


@pytest.mark.parametrize("dtype", ALL)
def test_group_norm_without_parameters_has_the_gradient_of_ones_and_zeros(dtype):
    """Paddle's own float32 kernel gets it wrong."""
    inputs = tensors([(2, 6, 35)], dtype)
    actual, (gradient,) = run(lambda x: F.group_norm(x, 3), inputs, "onednn")
    parameters = paddle.ones([6], dtype), paddle.zeros([6], dtype)
    expected, (other,) = run(lambda x: F.group_norm(x, 3, 1e-5, *parameters), inputs, "onednn")
    assert (actual.astype(FLOAT32).numpy() == expected.astype(FLOAT32).numpy()).all()
    assert (gradient.astype(FLOAT32).numpy() == other.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("axis", [[0, 0], [0, -2], [2]], ids=str)
def test_sum_over_axes_that_paddle_refuses_raises_paddles_error(axis):
    with pytest.raises((ValueError, RuntimeError)) as plain:
        paddle.sum(paddle.ones([2, 3]), axis=axis)
    with half_cpu.dispatch(), pytest.raises(plain.type):
        paddle.sum(paddle.ones([2, 3], "bfloat16"), axis=axis)


def test_linear_without_matching_shapes_raises_paddles_error():
    x, weight = tensors([(3, 8), (7, 4)])
    with half_cpu.dispatch(), pytest.raises(ValueError, match="(?i)dim|shape"):
        F.linear(x, weight)


def test_gradients_of_frozen_inputs_are_not_computed():
    x, weight, bias = tensors([(3, 8), (8, 4), (4,)])
    x.stop_gradient = bias.stop_gradient = True
    _, (x_gradient, weight_gradient, bias_gradient) = run(F.linear, [x, weight, bias], "onednn")
    assert x_gradient is None and bias_gradient is None and weight_gradient is not None


def test_linear_keeps_bfloat16_activations_only():
    x, weight = tensors([(4, 8), (8, 4)])
    with half_cpu.dispatch():
        node = F.linear(x, weight).grad_fn
    assert node.name() == "GradNodePyLayer_Linear"


PROBE = """
from image_classification.runtime import prepare_process
prepare_process()
import paddle
from image_classification import half_cpu
from image_classification.amp import build_precision
x, w = paddle.rand([8, 32]), paddle.rand([32, 16])
with half_cpu.dispatch():
    wide, half = paddle.matmul(x, w), paddle.matmul(x.astype("bfloat16"), w.astype("bfloat16"))
exact = paddle.matmul(x.astype("float64"), w.astype("float64"))
print(float((wide - exact.astype("float32")).abs().max()) < 1e-5, half.dtype == paddle.bfloat16)
print(build_precision("fp32").describe())
for dtype in ("bfloat16", "float16"):
    print(build_precision("auto", dtype=dtype).describe())
"""
COMPILED = half_cpu.backend_name(FLOAT16)


@pytest.mark.parametrize(("isa", "compiler", "float32_by", "bfloat16_by", "float16_by"), [
    ("ALL", "c++", "onednn", half_cpu.backend_name(BFLOAT16), COMPILED),
    ("ALL", "none", "onednn", half_cpu.backend_name(BFLOAT16), "reference"),
    ("AVX512_CORE", "c++", "onednn", COMPILED, COMPILED),
    ("AVX2", "c++", "onednn", COMPILED, COMPILED),
    ("AVX2", "none", "onednn", "reference", "reference"),
    ("SSE41", "c++", "paddle", "reference", "reference"),
])  # fmt: skip
def test_machine_with_less_computes_and_says_by_what(isa, compiler, float32_by, bfloat16_by, float16_by):
    """oneDNN itself is told to use no newer instructions; $CXX names a compiler that is not there."""
    chosen = os.environ.get("CXX", compiler) if compiler == "c++" else compiler
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1", "CXX": chosen}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-4:] == [
        "True True", f"fp32/float32 on cpu ({float32_by})", f"auto/bfloat16 on cpu ({bfloat16_by})",
        f"auto/float16 on cpu ({float16_by})",
    ], done.stderr  # fmt: skip


def gelu_layer(dtype, bias=True):
    paddle.seed(0)
    layer = paddle.nn.Linear(96, 160, bias_attr=None if bias else False)
    layer.weight.set_value(layer.weight * 4)
    return layer if dtype == FLOAT32 else layer.to(dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ALL)
def test_linear_gelu_in_evaluation_is_one_product_of_the_same_value(dtype, bias, monkeypatch):
    calls = Calls(monkeypatch, "linear_gelu")
    layer = gelu_layer(dtype, bias)
    (x,) = tensors([(2, 75, 96)], dtype)
    with paddle.no_grad(), half_cpu.dispatch(backend="counted"):
        actual = layers.linear_gelu(layer, x)
    assert calls.served == 1
    assert actual.dtype == x.dtype
    weights = [parameter.astype("float64") for parameter in layer.parameters()]
    exact = F.gelu(F.linear(x.astype("float64"), *weights)).numpy()
    # One rounding of the exact value, half a unit in the last place; float32: a sum of 96 terms and oneDNN's erf.
    bound = ROUNDING[dtype] / 2 * np.abs(exact) + 1e-5 if dtype in HALVES else 1e-5 * np.abs(exact).max()
    assert (np.abs(actual.astype("float64").numpy() - exact) <= bound).all()


def test_linear_gelu_with_gradients_keeps_what_its_backward_needs(monkeypatch):
    calls = Calls(monkeypatch, "linear_gelu", "linear", "gelu")
    layer = gelu_layer(BFLOAT16)
    (x,) = tensors([(2, 3, 96)])
    with half_cpu.dispatch(backend="counted"):
        layers.linear_gelu(layer, x).sum().backward()
    assert calls.served == 2  # linear and GELU, one by one
    assert layer.weight.grad is not None and x.grad is not None


def test_linear_gelu_of_a_layer_with_hooks_calls_them():
    layer, seen = gelu_layer(FLOAT32), []
    layer.register_forward_post_hook(lambda layer, inputs, output: seen.append(output.shape))
    with paddle.no_grad(), half_cpu.dispatch():
        layers.linear_gelu(layer, paddle.ones([2, 96]))
    assert seen == [[2, 160]]


@pytest.mark.parametrize(
    "split, order, shape",
    [([3, 6], [1, 0], [18]), ([3, 5], [1, 0], [16]), ([3, 5], [0, 0], [15]), ([3, 5], [1], [15])],
)
def test_rearrange_that_does_not_fit_is_refused_as_paddle_refuses_it(split, order, shape):
    """The kernel reads memory by these numbers, so it must not take wrong ones."""
    (x,) = tensors([(3, 5)])
    with half_cpu.dispatch(backend="onednn"), pytest.raises(ValueError):
        layers.rearrange(x, split, order, shape)


@pytest.mark.parametrize("case", sorted(FEWER_ROUNDINGS))
def test_kernel_that_rounds_less_is_closer_to_float64_than_the_reference(case):
    _, function, shapes, _ = CASES[case]
    inputs = tensors(shapes)
    with paddle.no_grad():
        exact = function(*(tensor.astype("float64") for tensor in inputs)).numpy()
    kernel, reference = (
        np.abs(run(function, inputs, backend)[0].astype("float64").numpy() - exact).mean()
        for backend in ("onednn", "reference")
    )
    assert kernel < reference


@pytest.mark.parametrize("dtype", ALL)
def test_cast_of_a_feature_map_keeps_its_memory_order(dtype):
    """Otherwise a bias that `auto` adds in float32 would send every feature map back to [B, C, H, W]."""
    (x,) = tensors([(2, 9, 7, 8)], dtype)
    features = x.transpose([0, 3, 1, 2])
    other = BFLOAT16 if dtype == FLOAT32 else FLOAT32
    result = onednn.KERNELS["cast"](None, (features, getattr(paddle, other)), {})
    assert result.strides == features.strides
    assert (result.numpy() == features.astype(other).numpy()).all()


@pytest.mark.parametrize("dtype", ALL)
def test_batch_norm_updates_the_running_statistics_as_paddle_does(dtype):
    results = []
    for backend in ("reference", "onednn"):
        x, scale, shift = tensors([(4, 8, 5, 3), (8,), (8,)], dtype)
        mean, variance = statistics(8)
        with half_cpu.dispatch(backend=backend):
            F.batch_norm(x, mean, variance, scale.astype(FLOAT32), shift.astype(FLOAT32), training=True, momentum=0.8)
        results.append((mean.numpy(), variance.numpy()))
    for actual, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)  # sums of 60 float32 terms


@pytest.mark.parametrize("dtype", ALL)
def test_operator_without_a_kernel_gets_dense_images_and_returns_the_gradient_in_their_order(dtype):
    """Paddle's operators would copy strided images element by element, and layers before would rearrange gradients."""
    x, weight = tensors([(2, 8, 9, 7), (16, 8, 3, 3)], dtype)
    orders = []
    with half_cpu.dispatch(backend="onednn"):
        features = F.conv2d(x, weight)
        features.register_hook(lambda gradient: orders.append(gradient.strides))
        out = F.softsign(features)
    out.backward(paddle.ones_like(out))
    assert out.is_contiguous() and orders == [features.strides]
    with half_cpu.dispatch(backend="reference"):
        expected = F.softsign(features.detach().contiguous())
    assert (out.astype(FLOAT32).numpy() == expected.astype(FLOAT32).numpy()).all()


@pytest.mark.parametrize("dtype", ALL)
def test_activation_inside_paddles_old_layers_is_served_too(dtype, monkeypatch):
    """`paddle.vision`'s densenet asks the legacy table for it."""
    calls = Calls(monkeypatch, "relu")
    (x,) = tensors([(2, 8, 5, 3)], dtype)
    with half_cpu.dispatch(backend="counted"):
        y = paddle._legacy_C_ops.relu(x, "use_cudnn", False)
    assert calls.served == 1
    assert (y.astype(FLOAT32).numpy() == np.maximum(x.astype(FLOAT32).numpy(), 0)).all()


def test_convolution_results_lie_channels_last_and_read_as_ordinary_tensors():
    x, weight = tensors([(2, 8, 9, 7), (16, 8, 3, 3)])
    with half_cpu.dispatch():
        out = F.conv2d(x, weight)
    assert out.shape == [2, 16, 7, 5] and out.strides == [7 * 5 * 16, 1, 5 * 16, 16]
    flat = out.astype(FLOAT32).flatten(1)
    np.testing.assert_array_equal(flat.numpy(), out.astype(FLOAT32).numpy().reshape(2, -1))


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_tensor_and_float32_parameters_give_float32_in_one_pass(case, dtype, monkeypatch):
    """Widening is exact, so nothing is rounded before the gradient of the half tensor."""
    name, function, shapes = MIXED[case]
    calls = Calls(monkeypatch, name)
    inputs = [*tensors(shapes[:1], dtype), *tensors(shapes[1:], FLOAT32, seed=2)]
    expected, expected_gradients = run(lambda x, *others: function(x.astype(FLOAT32), *others), inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served and actual.dtype == expected.dtype
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), atol=1e-5 * float(expected.abs().max()))
    assert_within_one_rounding(gradients[0], expected_gradients[0])
    for gradient, wanted in zip(gradients[1:], expected_gradients[1:], strict=True):
        np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), atol=1e-5 * float(wanted.abs().max()))


def test_policy_that_wants_float32_for_one_operator_gets_it_from_its_kernel_alone():
    """A sum that a user puts on the black list is float32, whatever its kernel could do."""
    x, y, s = tensors([(3, 5, 33), (3, 5, 33), (33,)])

    class Sums:
        def cast(self, op_name, tensors):
            return "float32" if op_name == "add" else None

    with half_cpu.dispatch(Sums()):
        assert layers.residual(x, y, s).dtype == paddle.float32
        assert layers.residual(x.astype(FLOAT32), y, s).dtype == paddle.float32
