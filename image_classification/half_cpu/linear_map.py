"""Linear functions that keep nothing of their argument, such as copies to another order; so is the gradient of each."""

import functools

from .paddle_names import reshape
from .recorded import PyLayer


class LinearMap(PyLayer):
    """A linear function of a tensor; its gradient is another function, given with it."""

    @staticmethod
    def forward(ctx, x, there, back):
        """Return there(x)."""
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, gradient):
        """Return back(gradient), the gradient of x."""
        return ctx.back(gradient)


def both_ways(x, function, there, back):
    """Return function(*there, x), recorded by autograd; its gradient is function(*back, gradient)."""
    return LinearMap.apply(x, functools.partial(function, *there), functools.partial(function, *back))


def reshaped(x, shape):
    """Return the view of a tensor with another shape, which a recorded pass may read beside other readers of it."""
    own = x.shape
    return LinearMap.apply(x, lambda tensor: reshape(tensor, shape), lambda gradient: reshape(gradient, own))
