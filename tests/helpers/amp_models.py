"""A small convolution and batch norm network, its data, and one training step of it, for the tests of `amp`."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

MODES = [("auto", "float16"), ("auto", "bfloat16"), ("O0", "float32")] + [
    (mode, dtype) for mode in ("O1", "O2", "O3", "naive") for dtype in ("float16", "bfloat16")
]


def network(seed=3):
    """Return convolution, batch norm, group norm and linear layers for images [N, 3, 8, 8]."""
    paddle.seed(seed)
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, bias_attr=False),
        nn.BatchNorm2D(8),
        nn.ReLU(),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2D(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 5),
    )


def batch(seed=0, size=16):
    """Return (images float32 [size, 3, 8, 8], labels int64 [size])."""
    random = np.random.default_rng(seed)
    images = random.standard_normal((size, 3, 8, 8)).astype("float32")
    return paddle.to_tensor(images), paddle.to_tensor(random.integers(0, 5, size))


def build(precision, optimizer="AdamW"):
    """Return (model, optimizer) of the network under a precision."""
    model = precision.convert_model(network())
    params = [param for _, param in precision.master_params(model)]
    return model, getattr(paddle.optimizer, optimizer)(0.01, parameters=params)


def forward(precision, model, images, labels):
    with precision.forward_context():
        return F.cross_entropy(model(images), labels)


def train(precision, model, optimizer, steps=3):
    """Return the losses of a few steps on one batch."""
    images, labels = batch()
    losses = []
    for _ in range(steps):
        loss = forward(precision, model, images, labels)
        precision.backward(loss)
        precision.step(optimizer)
        losses.append(loss.item())
    return losses


def bits(tensors):
    """Return {name: (dtype, bytes)} of named tensors: equal exactly when every bit is."""
    return {name: (str(tensor.dtype), tensor.numpy().tobytes()) for name, tensor in tensors.items()}
