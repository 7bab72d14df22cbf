"""`Tensor.contiguous()` changes the strides of the tensor that it is called on; a kernel must not notice."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.half_cpu import onednn

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


WEIGHTS = []  # leaves of the graph


def row(*shape):
    """Return a new weight."""
    weight = paddle.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape).detach()
    weight.stop_gradient = False
    WEIGHTS.append(weight)
    return weight


def batch_norm(x, activation=None, residual=None):
    norm = paddle.nn.BatchNorm2D(24)
    return layers.norm_activation(x, norm, activation, residual)


READERS = {
    "conv2d": lambda x: F.conv2d(x, row(5, 24, 3, 3)),
    "depthwise": lambda x: F.conv2d(x, row(24, 1, 3, 3), groups=24),
    "conv2d_transpose": lambda x: F.conv2d_transpose(x, row(24, 5, 2, 2), stride=2),
    "batch_norm": batch_norm,
    "batch_norm-relu": lambda x: batch_norm(x, F.relu),
    "batch_norm-residual-relu": lambda x: batch_norm(x, F.relu, x * 0.5),
    "group_norm": lambda x: F.group_norm(x, 3, 1e-5, row(24), row(24)),
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": F.sigmoid,
    "softmax": lambda x: F.softmax(x, axis=1),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "multiply-row": lambda x: x * row(1, 24, 1, 1),
    "multiply-gate": lambda x: x * F.sigmoid(x.mean([2, 3], keepdim=True)),
    "multiply": lambda x: x * (x + 1),
    "divide": lambda x: x / row(1, 24, 1, 1),
    "residual": lambda x: layers.residual(x, x * 2, row(24, 1, 1)),
    "sum": lambda x: x.sum(1),
    "concat": lambda x: paddle.concat([x, x * 2], axis=1),
    "transpose": lambda x: x.transpose([0, 2, 3, 1]).flatten(1, 2) @ row(24, 5),
}


def gradients(reader, touched):
    """Return the result and all gradients; `touched`: what goes into the reader and comes out of it was made dense."""
    paddle.seed(0)
    WEIGHTS[:] = images, filters = paddle.randn([2, 3, 7, 9]), paddle.randn([24, 3, 3, 3])
    images.stop_gradient = filters.stop_gradient = False
    with half_cpu.dispatch():
        x = F.conv2d(images, filters)
        assert not x.is_contiguous()
        out = reader(x)
    if touched:
        assert x.contiguous() is not None and x.is_contiguous()  # Paddle's, in place
        out.contiguous()
    (out * paddle.randn(out.shape)).sum().backward()
    return [out.numpy(), *(leaf.grad.numpy() for leaf in WEIGHTS)]


@pytest.mark.parametrize("name", READERS)
def test_tensor_made_dense_before_the_backward_pass_changes_no_gradient(name):
    expected, found = (gradients(READERS[name], touched) for touched in (False, True))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * np.abs(one).max())  # sums in another order
