"""Operators with backward passes of their own."""

import functools
import types
from typing import Any

import paddle
from paddle.autograd import PyLayerContext


class PyLayer(paddle.autograd.PyLayer):
    """Paddle's; where no gradient is asked for, the forward pass is called as the function that it is.

    A gradient has no gradient: where `create_graph=True` would need it, that is a RuntimeError, as Paddle's own
    operators raise one where theirs is missing.
    """

    _of_list: Any

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
        cls._of_list = _of_list(cls)

    @classmethod
    def apply(cls, *args: Any) -> Any:
        if not paddle.is_grad_enabled():
            return cls.forward(PyLayerContext(), *args)
        tensors = [argument for argument in args if isinstance(argument, paddle.Tensor)]
        asked = [tensor for tensor in tensors if not tensor.stop_gradient]
        if len(asked) < 2:
            return super().apply(*args)
        return cls._of_list.apply(asked, {"args": args, "asks": [not tensor.stop_gradient for tensor in tensors]})


def _of_list(cls):
    """Return the same operator of one list, of the tensors whose gradients are asked for.

    Where `paddle.grad` asks for gradients of some of them, the engine takes those of other arguments as an error
    (3.3.1), but leaves them alone where all are in one list.
    """

    def forward(ctx, asked, call):
        ctx.asks = call["asks"]
        return cls.forward(ctx, *call["args"])

    def backward(ctx, *gradients):
        return [one for one, asks in zip(cls.backward(ctx, *gradients), ctx.asks, strict=False) if asks]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return types.new_class(cls.__name__, (paddle.autograd.PyLayer,), exec_body=lambda body: body.update(methods))


def _is_constant(gradient):
    return gradient is None or gradient.is_leaf
