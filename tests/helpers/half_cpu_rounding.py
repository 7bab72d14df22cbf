"""Half formats by NumPy alone: the independent reference of the half precision tests."""

import numpy as np
import paddle

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
