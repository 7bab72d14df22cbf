"""Operators with backward passes of their own."""

import functools
from typing import Any

import paddle
from paddle.autograd import PyLayerContext


class PyLayer(paddle.autograd.PyLayer):
    """Paddle's; where no gradient is asked for, the forward pass is called as the function that it is.

    A gradient has no gradient: where `create_graph=True` would need it, that is a RuntimeError, as Paddle's own
    operators raise one where theirs is missing.
    """

    def __init_subclass__(cls):
        backward = cls.backward

        @functools.wraps(backward)
        def once(ctx, *gradients):
            # Gradients are recorded with create_graph=True alone; what kept nothing is linear.
            if paddle.is_grad_enabled() and (hasattr(ctx, "versions") or not all(map(_is_constant, gradients))):
                raise RuntimeError("half_cpu has no second derivatives: leave create_graph=True to "
                                   'dispatch(backend="reference") or to no dispatch')  # fmt: skip
            return backward(ctx, *gradients)

        setattr(cls, "backward", staticmethod(once))  # noqa: B010, mypy takes no method for another

    @classmethod
    def apply(cls, *args: Any) -> Any:
        return super().apply(*args) if paddle.is_grad_enabled() else cls.forward(PyLayerContext(), *args)


def _is_constant(gradient):
    return gradient is None or gradient.is_leaf
