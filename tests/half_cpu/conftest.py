"""The way into an evaluation of a model, for tests of what is recorded there."""

import contextlib

import paddle
import pytest

from image_classification import amp, half_cpu


@pytest.fixture
def inside():
    """Return a function that converts a model for a mode and enters all contexts of its evaluation."""
    with contextlib.ExitStack() as stack:

        def enter(model, mode="auto", dtype="bfloat16"):
            if dtype is not None and half_cpu.backend_name(dtype) == "reference":
                mode, dtype = "fp32", None
            precision = amp.build_precision(mode, dtype)
            model = precision.convert_model(model)
            model.eval()
            for context in (paddle.no_grad(), half_cpu.frozen(model), precision.forward_context()):
                stack.enter_context(context)
            return model

        yield enter
