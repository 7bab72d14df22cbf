"""When the compiled kernel of an operator that Paddle has in float32 too is worth its call."""

import paddle

from .arguments import FLOAT32
from .onednn_primitives import servable

LARGE = 1 << 15  # elements: below, Paddle's float32 operators take less time than a PyLayer


def pays(x, count, only_backward=False):
    """Return whether a kernel is faster than Paddle for a result of so many elements. Half tensors would be cast; in
    float32 some kernels are the faster ones by their gradients alone."""
    if not servable(x) or not count:
        return False
    return x.dtype is not FLOAT32 or (count >= LARGE and (not only_backward or asks_gradient(x)))


def asks_gradient(*tensors):
    """Return whether what is computed from tensors is recorded by autograd."""
    return paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors)
