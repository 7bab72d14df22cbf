"""Every operator's half result and gradients equal float32 arithmetic on the half inputs, rounded once, bit for bit.

The float32 arithmetic is Paddle's own, outside the dispatch; the rounding is NumPy's.
"""

import numpy as np
import paddle
import pytest
from half_cpu_cases import CASES

from image_classification import half_cpu

DTYPES = ("float16", "bfloat16")


def round_half(values, dtype):
    """Return float32 `values` rounded to nearest, ties to even, as the half format's 16-bit patterns."""
    values = np.asarray(values, "float32", order="C")
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def widen(patterns, dtype):
    """Return the float32 values of 16-bit patterns."""
    if dtype == "float16":
        return patterns.view(np.float16).astype(np.float32)
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def bits(tensor):
    """Return the 16-bit patterns of a half tensor."""
    return tensor.numpy().view(np.uint16)


def half_tensor(values, dtype):
    """Return a half CPU tensor of `values` that are exact in `dtype`."""
    return paddle.to_tensor(values).astype(dtype)


def assert_rounded_once(actual, expected, dtype, what):
    """Compare a half tensor with a float32 tensor rounded by NumPy, or tensors of any other dtype with each other."""
    assert actual.shape == expected.shape, what
    if expected.dtype != paddle.float32:
        assert actual.dtype == expected.dtype, what
        np.testing.assert_array_equal(actual.numpy(), expected.numpy(), what)
        return
    assert actual.dtype == getattr(paddle, dtype), f"{what} is {actual.dtype}"
    got, wanted = bits(actual), round_half(expected.numpy(), dtype)
    nan = np.isnan(widen(wanted, dtype))
    np.testing.assert_array_equal(np.isnan(widen(got, dtype)), nan, what)
    np.testing.assert_array_equal(got[~nan], wanted[~nan], what)


def flat(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


def draw(case, dtype):
    rng = np.random.default_rng(0)
    return [
        (widen(round_half(drawn, dtype), dtype) if spec.floating else drawn)
        for spec, drawn in ((spec, spec.draw(rng)) for spec in case.inputs)
    ]


class Recorder:
    def __init__(self):
        self.names = []

    def cast(self, op_name, tensors):
        self.names.append(op_name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator_on_half_tensors_equals_float32_rounded_once(case, dtype):
    values = draw(case, dtype)
    half, wide = [], []
    for spec, value in zip(case.inputs, values, strict=True):
        half.append(half_tensor(value, dtype) if spec.floating else paddle.to_tensor(value))
        wide.append(paddle.to_tensor(value))
        half[-1].stop_gradient = wide[-1].stop_gradient = not (spec.floating and spec.differentiable)
    expected = flat(case.function(*wide))
    recorder = Recorder()
    with half_cpu.dispatch(recorder, backend="reference"):
        actual = flat(case.function(*half))
    if not case.operator.startswith("_") and case.operator != "assign":
        assert case.operator in recorder.names
    assert len(actual) == len(expected)
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        assert_rounded_once(got, wanted, dtype, f"output {index}")

    rng = np.random.default_rng(1)
    outputs = [index for index, wanted in enumerate(expected) if not wanted.stop_gradient]
    assert outputs == [index for index, got in enumerate(actual) if not got.stop_gradient]
    if not outputs:
        return
    gradients = [widen(round_half(rng.standard_normal(expected[i].shape), dtype), dtype) for i in outputs]
    paddle.autograd.backward([expected[i] for i in outputs], [paddle.to_tensor(g) for g in gradients])
    paddle.autograd.backward([actual[i] for i in outputs], [half_tensor(g, dtype) for g in gradients])
    for index, (got, wanted) in enumerate(zip(half, wide, strict=True)):
        if not wanted.stop_gradient and wanted.grad is not None:
            assert_rounded_once(got.grad, wanted.grad, dtype, f"gradient of input {index}")
