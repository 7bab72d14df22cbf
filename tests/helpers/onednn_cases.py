"""Every operator of the oneDNN kernels: {case: (kernel, function, shapes of its inputs, does it round within)}."""

import paddle
import paddle.nn.functional as F

from image_classification import layers
from image_classification.EVA02 import eva02
from image_classification.half_cpu import op_names
from image_classification.Swin import swin
from image_classification.XCiT import xcit
from tests.helpers.onednn_runs import statistics


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
    "linear-packed-transposed": ("linear", lambda x, w: F.linear(x, w.T), [(1030, 67), (70, 67)], False),
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
    "matmul-one-left": ("matmul", lambda x, y: paddle.matmul(x, y, transpose_x=True), [(4, 4), (2, 4, 300)], False),
    "matmul-one-left-of-axes": ("matmul", lambda x, y: paddle.matmul(x, y), [(1, 1, 6, 16), (3, 2, 16, 8)], False),
    "matmul-one-left-both": ("matmul", lambda x, y: paddle.matmul(x, y, True, True), [(3, 5), (2, 3, 4, 3)], False),
    "matmul-one-right": ("matmul", lambda x, y: paddle.matmul(x, y, transpose_x=True), [(3, 16, 8), (16, 6)], False),
    "matmul-one-right-of-axes": (
        "matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), [(3, 2, 8, 16), (1, 1, 6, 16)], False),
    "matmul-one-left-strided": ("matmul", lambda x, y: x[:, ::2] @ y, [(3, 8), (2, 4, 7)], False),
    "matmul-one-of-one": ("matmul", lambda x, y: paddle.matmul(x, y), [(3, 8), (1, 8, 7)], False),
    "matmul-strided": ("matmul", lambda x, y: x.transpose([0, 2, 1]) @ y, [(2, 8, 5), (2, 8, 7)], False),
    "matmul-columns-apart": (
        "matmul", lambda x, y: paddle.matmul(x[..., :1], y[:, :1]), [(3, 5, 4), (3, 2, 7)], False),
    "matmul-parts-of-heads": (
        "matmul", lambda x, y: x[..., 1:].transpose([0, 2, 1, 3]) @ y, [(4, 4, 3, 9), (4, 3, 8, 5)], False),
    "matmul-packed-heads": (
        "matmul", lambda x, y: x.reshape([12, 4, 3, 2, 8])[:, :, 1].transpose([0, 2, 1, 3]) @ y,
        [(12, 4, 48), (12, 2, 8, 5)], False),
    "matmul-rows-apart": (
        "matmul", lambda x, y: paddle.matmul(x[:, :1, ::3], y[:, ::2, 1:2]), [(3, 2, 15), (3, 10, 3)], False),
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
    "add-one": ("add", lambda x, y: x + y, [(1, 1), (1,)], False),
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
    "conv-1x1-grouped": (
        "conv2d", lambda x, w: F.conv2d(x, w, stride=[2, 3], groups=2), [(2, 16, 9, 8), (24, 8, 1, 1)], False),
    "conv-1x1-transposed": (
        "conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=2, output_padding=1),
        [(2, 16, 5, 4), (16, 24, 1, 1)], False),
    "conv-1x1-of-few": ("conv2d", lambda x, w: F.conv2d(x, w, stride=2), [(2, 8, 5, 7), (4, 8, 1, 1)], False),
    "conv-1x1-large": ("conv2d", lambda x, w: F.conv2d(x, w), [(2, 512, 3, 2), (520, 512, 1, 1)], False),
    "conv-1x1-large-stride": (
        "conv2d", lambda x, w: F.conv2d(x, w, stride=2), [(2, 512, 3, 2), (520, 512, 1, 1)], False),
    "conv-groups": ("conv2d", lambda x, w: F.conv2d(x, w, groups=2), [(2, 16, 9, 7), (24, 8, 3, 3)], False),
    "conv-dilated": ("conv2d", lambda x, w: F.conv2d(x, w, dilation=2), [(2, 5, 9, 7), (6, 5, 3, 3)], False),
    "conv-dilated-single-taps": (
        "conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2), [(2, 9, 14, 1), (9, 9, 1, 1)], False),
    "conv-depthwise": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=16, padding=1), [(2, 16, 9, 7), (16, 1, 3, 3)], False),
    "conv-two-of-each-channel": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=16, padding=1), [(2, 16, 9, 7), (32, 1, 3, 3)], False),
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
    "batch_norm-without-parameters": (
        "batch_norm", lambda x: F.batch_norm(x, *statistics(8), training=True), [(4, 8, 5, 3)], True),
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
    "layer_norm-without-scale": (
        "layer_norm", lambda x, b: F.layer_norm(x, 33, None, b, 1e-6), [(3, 5, 33), (33,)], False),
    "layer_norm-of-nothing-else": ("layer_norm", lambda x: F.layer_norm(x, 33, None, None, 1e-6), [(3, 5, 33)], False),
    "attention": ("attention", lambda qkv: layers.attention(qkv, 4, 0.25), [(2, 13, 3 * 4 * 16)], True),
    "attention-three-samples-a-token": ("attention", lambda qkv: layers.attention(qkv, 2, 0.5), [(12, 4, 96)], True),
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
    "add-both-repeated": ("add", lambda x, y: x + y, [(1, 3, 5, 7), (4, 1, 5, 7)], False),
    "add-outer": ("add", lambda x, y: x + y.transpose([1, 0]), [(33,), (1, 5)], False),
    "add-both-repeated-twice": ("add", lambda x, y: x + y, [(2, 1, 5, 1), (3, 1, 7)], False),
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
    "depthwise-tall": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=17, padding=1), [(1, 17, 70, 100), (17, 1, 3, 3)],
        False),
    "depthwise-many-samples": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=20, padding=[1, 5]), [(9, 20, 6, 15), (20, 1, 3, 11)],
        False),
    "depthwise-pixels-not-read": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, stride=3, dilation=[2, 1], groups=18, padding=[2, 0]),
        [(2, 18, 14, 11), (18, 1, 2, 2)], False),
    "depthwise-much-padding": (
        "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=16, padding=[4, 3]), [(2, 16, 5, 6), (16, 1, 3, 3)],
        False),
    "subtract": ("subtract", lambda x, y: x - y, [(3, 5, 33), (3, 5, 33)], False),
    "subtract-strided": ("subtract", lambda x, y: x.transpose([1, 0]) - y, [(5, 33), (33, 5)], False),
    "subtract-row-first": ("subtract", lambda x, y: y - x, [(3, 5, 33), (5, 1)], False),
    "subtract-column": ("subtract", lambda x, y: x - y, [(3, 5, 33), (3, 5, 1)], False),
    "divide-column": ("divide", lambda x, y: x / y, [(3, 5, 33), (3, 5, 1)], False),
    "divide-row-as-column": ("divide", lambda x, y: x / y.T, [(5, 33), (1, 5)], False),  # its strides are [1, 5]
    "divide-one-of-many": ("divide", lambda x, y: x / y[1::2], [(3, 5, 33), (3,)], False),
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
    "unsqueeze-one-after-the-other": (
        "unsqueeze", lambda x: x.transpose([1, 0, 2]).unsqueeze([3, 1, -1, 0]), [(3, 5, 33)], False),
    "squeeze-strided": ("squeeze", lambda x: x.transpose([1, 0, 2]).squeeze(1), [(1, 5, 33)], False),
    "squeeze-unsqueeze": (
        "squeeze", lambda x: F.relu(x.transpose([2, 0, 1]).unsqueeze(2).squeeze(-2)), [(3, 5, 33)], False),
    "pad-all-axes": ("pad", lambda x: F.pad(x, [0, 0, 0, 0, 1, 2, 0, 3]), [(2, 5, 4, 3)], False),
    "pad-reflect": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0], mode="reflect"), [(2, 5, 4, 18)], False),
    "pad-replicate": ("pad3d", lambda x: F.pad(x, [1, 2, 3, 0], mode="replicate"), [(2, 5, 4, 3)], False),
    "pad-depth": (
        "pad3d", lambda x: F.pad(x, [0, 0, 0, 0, 2, 1], data_format="NCDHW"), [(2, 3, 5, 4, 7)], False),
    "pad-depth-replicate": (
        "pad3d", lambda x: F.pad(x, [0, 0, 0, 0, 1, 3], mode="replicate", data_format="NCDHW"), [(2, 3, 5, 1, 1)],
        False),
    "avg_pool-depth": ("pool3d", lambda x: F.avg_pool3d(x, (3, 1, 1), 1), [(2, 3, 7, 4, 5)], False),
    "avg_pool-depth-padded": (
        "pool3d", lambda x: F.avg_pool3d(x, (3, 1, 1), (2, 1, 1), (1, 0, 0), exclusive=False), [(2, 3, 7, 4, 5)],
        False),
    "avg_pool-depth-padding-left-out": (
        "pool3d", lambda x: F.avg_pool3d(x, (4, 1, 1), (2, 1, 1), (2, 0, 0)), [(2, 3, 7, 4, 5)], False),
    "avg_pool-depth-ceil": (
        "pool3d", lambda x: F.avg_pool3d(x, (4, 1, 1), (2, 1, 1), ceil_mode=True), [(2, 3, 7, 4, 5)], False),
    "avg_pool-depth-strided": (
        "pool3d", lambda x: F.avg_pool3d(x.transpose([0, 1, 4, 2, 3]), (3, 1, 1), 1), [(2, 3, 7, 4, 5)], False),
    "local_response_norm": ("pool3d", lambda x: F.local_response_norm(x, 5), [(2, 9, 4, 5)], True),
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
    "roll": ("roll", lambda x: x.roll([2, -1], axis=[0, -1]), [(3, 5, 33)], False),
    "roll-after-conv": (
        "roll", lambda x, w: F.conv2d(x, w).roll([-3, 8, 1], axis=[2, 3, 2]), [(2, 8, 5, 7), (24, 8, 1, 1)], True),
    "bmm": ("bmm", paddle.bmm, [(3, 5, 33), (3, 33, 6)], False),
    "log_softmax": ("log_softmax", lambda x: F.log_softmax(x * 8), [(3, 5, 33)], False),
    "celu": ("celu", lambda x: F.celu(x, 0.7), [(3, 5, 33)], False),
    "selu": ("selu", F.selu, [(3, 5, 33)], False),
    "softplus": ("softplus", lambda x: F.softplus(x * 4, 1.5, 3.0), [(3, 5, 33)], False),
    "softplus-far": ("softplus", lambda x: F.softplus(x * 30), [(3, 5, 33)], False),
    "log_sigmoid": ("logsigmoid", lambda x: F.log_sigmoid(x * 4), [(3, 5, 33)], False),
    "softsign": ("softsign", F.softsign, [(3, 5, 33)], False),
    "hardtanh": ("hardtanh", lambda x: F.hardtanh(x, -0.5, 0.7), [(3, 5, 33)], False),
    "pixel-shuffle": ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), [(2, 12, 5, 7)], False),
    "pixel-unshuffle": ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 3), [(2, 5, 6, 9)], False),
    "channel-shuffle": ("channel_shuffle", lambda x: F.channel_shuffle(x, 3), [(2, 12, 5, 7)], False),
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
    "reshape-transposed": ("reshape", lambda x: x.transpose([1, 0]).reshape([-1]), [(35, 33)], False),
    "reshape-of-a-part": ("reshape", lambda x: x[..., 1:4].reshape([0, -1]), [(3, 5, 33)], False),
    "reshape-after-conv": ("reshape", lambda x, w: F.conv2d(x, w).reshape([2, 120, 7]), [(2, 8, 5, 7), (24, 8, 1, 1)],
                           True),
    "rotary-halves": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(5, 20), 3, True), [(2, 5, 3 * 3 * 20)], False),
    "rotary-neighbours": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(5, 20), 3, False), [(2, 5, 3 * 3 * 20)], False),
    "rotary-pair-of-one-token": (
        "rotary", lambda qkv: eva02.rotary(qkv, *angles(1, 2), 1, False), [(1, 1, 3 * 2)], False),
    "windows": ("windows", lambda x: swin.windows(x, 3, 0), [(2, 6, 9, 5)], False),
    "windows-shifted": ("windows", lambda x: swin.windows(x.transpose([0, 2, 1, 3]), 4, 3), [(2, 8, 12, 5)], False),
    "maps": ("maps", lambda x: swin.maps(x, 3, 1, 6, 9), [(12, 9, 5)], False),
    "maps-of-one-window": ("maps", lambda x: swin.maps(x.transpose([0, 2, 1]), 2, 1, 2, 2), [(3, 5, 4)], False),
    "cross-covariance": (
        "cross_covariance", lambda qkv, t: xcit.cross_covariance(qkv, 3, t), [(2, 13, 3 * 3 * 20), (3, 1, 1)], True),
    "cross-covariance-strided": (
        "cross_covariance", lambda qkv, t: xcit.cross_covariance(qkv.transpose([0, 2, 1]), 4, t),
        [(2, 3 * 4 * 24, 70), (4, 1, 1)], True),
    "cross-covariance-one-token": (
        "cross_covariance", lambda qkv, t: xcit.cross_covariance(qkv, 2, t), [(3, 1, 3 * 2 * 5), (2, 1, 1)], True),
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
    "dot-product-mask-strided": (
        "dot_product_attention", lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask.transpose([1, 0])),
        [(2, 13, 1, 8), (2, 9, 1, 8), (2, 9, 1, 8), (9, 13)], True),
    "dot-product-parts": (
        "dot_product_attention", lambda q, k, v: F.scaled_dot_product_attention(q[..., 1:], k[..., :-1], v[..., 1:]),
        [(4, 4, 3, 9)] * 3, True),
    "dot-product-mask": (
        "dot_product_attention", F.scaled_dot_product_attention,
        [(2, 13, 3, 8), (2, 9, 3, 8), (2, 9, 3, 8), (1, 3, 13, 9)], True),
    "attention-one-token": ("attention", lambda qkv: layers.attention(qkv, 3, 0.3), [(3, 1, 3 * 3 * 8)], True),
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
    "add-images-to-each-sample": (
        "add", lambda x, w, y: F.max_pool2d(x, 1) + y + w, [(3, 8, 5, 7), (8, 1, 1), (1, 8, 5, 7)]),
    "multiply-row": ("multiply", lambda x, y: x * y, [(3, 5, 33), (33,)]),
    "multiply-gates": ("multiply", lambda x, y: F.max_pool2d(x, 1) * y, [(2, 24, 9, 7), (2, 24, 1, 1)]),
    "multiply-gates-odd": ("multiply", lambda x, y: y * F.max_pool2d(x, 1), [(3, 7, 40, 41), (3, 7, 1, 1)]),
}

# The reference rounds between the operators that a kernel computes as one (scores and biased scores; a product, what
# drop path makes of it, and a sum): each of them is allowed one more rounding.
FEWER_ROUNDINGS = {"attention", "attention-bias", "attention-biases", "attention-three-samples-a-token"} | {
    case for case in CASES if case.startswith(("residual", "dot-product", "scale_shift"))
}

# A factor or a summand was rounded before, after a sum whose last bit depends on its order: a convolution's result, or
# the lengths, scores and probabilities of attention between channels.
AFTER_ROUNDING = {"add-channels", "multiply-channels", "conv-residual", "residual-images"} | {
    case for case in CASES if case.startswith("cross-covariance")
}
