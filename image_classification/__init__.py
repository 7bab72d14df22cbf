"""An image-classification zoo for PaddlePaddle whose subject is number formats."""

from . import runtime as runtime  # first: it refuses a Python or a Paddle that is not supported
