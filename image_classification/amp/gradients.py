"""Checks and arithmetic on lists of gradients that cost one pass over memory and one host sync each."""

import math
from collections.abc import Callable
from operator import attrgetter

import numpy as np
import paddle

from .. import half_cpu
from . import private

Named = list[tuple[str, paddle.Tensor]]  # parameters under the model's structured names, in the optimizer's order


def as_it_waits(param: paddle.Tensor) -> paddle.Tensor | None:
    """Return the gradient of a parameter for one who only reads it: half where it waits at a master; None for none."""
    half = getattr(param, "half_gradient", None)
    return param.grad if half is None else half


def gradients_of(named_params: Named, read: Callable = attrgetter("grad")) -> list[paddle.Tensor]:
    """Return the gradients that exist, in order; a sparse one, of an embedding's rows, becomes dense.

    Args:
        read: function of a parameter that returns its gradient or None.
    """
    found = []
    for _, param in named_params:
        gradient = read(param)
        if gradient is not None and not gradient.is_dense():
            with paddle.enable_grad():  # autograd alone may put a dense gradient in its place, the sum with another
                (param * paddle.zeros_like(param)).sum().backward()
            gradient = read(param)
        if gradient is not None:
            found.append(gradient)
    return found


def squared_norm(gradients):
    """Return the sum of squares of all gradients, a float that is finite exactly when every element is finite."""
    if not gradients:
        return 0.0
    with paddle.no_grad():
        # Reading 86 million float32 values this way takes a sixth of the time of Paddle's check_finite_and_unscale.
        values = square_sums(gradients).numpy().astype("float64")
        # Squares of finite values above 1.8e19 pass float32's range; the first tensor that holds inf or NaN decides.
        for index in np.flatnonzero(~np.isfinite(values)):
            if not paddle.isfinite(gradients[index]).all().item():
                break
            wide = gradients[index].astype("float64")
            values[index] = (wide * wide).sum().item()
        return float(values.sum())


@half_cpu.composite("square_sums")
def square_sums(tensors):
    """Return the sum of the squares of all numbers of each tensor, computed in float32, [n]."""
    return _stacked([private.squared_l2_norm(_float32(tensor)) for tensor in tensors])


def first_non_finite(named_params):
    """Return the name of the first parameter whose gradient holds inf or NaN, None when all are finite."""
    for name, param in named_params:
        if param.grad is not None and not math.isfinite(squared_norm([param.grad])):
            return name
    return None


def multiply(gradients, factor):
    """Multiply every gradient in place; float16 and bfloat16 ones are multiplied in float32 and rounded once."""
    if factor == 1:
        return
    with paddle.no_grad():
        for gradient in gradients:
            if gradient.dtype == paddle.float32:
                gradient.scale_(factor)
            else:
                write(gradient, gradient.astype("float32").scale_(factor))


@half_cpu.composite("write")
def write(half, value):
    """Round a float32 tensor into a half one."""
    # Not set_value: off the CPU each call of it waits for the device.
    paddle.assign(value.astype(half.dtype), half)


def count_zeros(gradients):
    """Return how many elements of all gradients are exactly 0."""
    with paddle.no_grad():
        # Not `gradient == 0`: Paddle calls floats equal when they differ by less than 1e-8.
        counts = [gradient.astype("bool").logical_not().sum() for gradient in gradients]
        return int(_stacked(counts).numpy().sum()) if counts else 0


def _float32(tensor):
    return tensor if tensor.dtype == paddle.float32 else tensor.astype("float32")


def _stacked(scalars):
    """Return one-element tensors as one of float64, [n], so that one host sync reads them all."""
    return paddle.stack([scalar.reshape([]).astype("float64") for scalar in scalars])
