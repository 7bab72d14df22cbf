"""Operators with backward passes of their own."""

from typing import Any

import paddle
from paddle.autograd import PyLayerContext


class PyLayer(paddle.autograd.PyLayer):
    """Paddle's; where no gradient is asked for, the forward pass is called as the function that it is."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        return super().apply(*args) if paddle.is_grad_enabled() else cls.forward(PyLayerContext(), *args)
