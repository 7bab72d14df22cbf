"""Where several operators read one tensor, a kernel sums the gradients that they send back.

Paddle's engine would do it: in one thread, a float16 number at a time, and for images as rows of [B, C, H, W], copied
there and back. So an operator under a dispatch does not get a large tensor itself but one of two views of it; the other
is left for the next reader; of float32 only images. Hooks and gradients of the tensor see the sum, as ever.
"""

import math

import paddle

from .arguments import BFLOAT16, FLOAT16, FLOAT32, replace_tensors
from .scope import active

# Elements from which on the sum of the engine takes longer than making the views: of half tensors, of float32 images.
LARGE_HALF, LARGE = 1 << 15, 1 << 18


def branched(scope, args, kwargs, tensors):
    """Return (args, kwargs) with a view in place of each large tensor whose gradient goes on to another operator."""
    if scope.fork is None or not paddle.is_grad_enabled():
        return args, kwargs
    inner = {id(tensor) for tensor in tensors if is_inner(tensor)}
    if not inner:
        return args, kwargs
    active.scope = None
    try:
        return replace_tensors(
            args, kwargs, lambda tensor: _view(scope.fork, tensor) if id(tensor) in inner else tensor
        )
    finally:
        active.scope = scope


def is_inner(tensor):
    """Return whether a kernel is to sum the gradients of a tensor, where it has several readers."""
    if tensor.stop_gradient or tensor.is_leaf:
        return False
    size, dtype = math.prod(tensor.shape), tensor.dtype
    if dtype is FLOAT16 or dtype is BFLOAT16:
        return size >= LARGE_HALF
    return size >= LARGE and dtype is FLOAT32 and tensor.ndim == 4  # of others the engine's sum is as fast


def _view(fork, tensor):
    """Return a view of a tensor for one reader, and keep the one for the next readers with the tensor."""
    state = tensor.inplace_version, tensor.data_ptr()  # `tensor.data = other` counts as no write
    rest, known = getattr(tensor, "rest_of_branches", (tensor, state))
    view, rest = fork(rest if known == state else tensor)
    if view is not rest:
        tensor.rest_of_branches = rest, state
    return view
