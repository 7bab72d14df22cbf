"""A layer norm that writes its result where the windows of its maps have it."""

import numpy as np
import paddle
import pytest

from image_classification import half_cpu, layers
from image_classification.amp import build_precision
from image_classification.half_cpu.compiled_library import load
from image_classification.Swin import swin
from tests.helpers.onednn_runs import FLOAT32, HALVES, needs_onednn, tensors

pytestmark = [needs_onednn, pytest.mark.skipif(load() is None, reason="needs the compiled kernels")]


def gradients_of(function, dtype, norm, linear):
    """Return the dtype of `function(x)`, what a linear layer makes of it in mixed precision, and all gradients."""
    (x,) = tensors([(2, 6, 12, 21)], FLOAT32)
    for layer in (norm, linear):
        layer.clear_gradients()
    with build_precision("auto", dtype=dtype).forward_context():
        parts = function(x)
        out = linear(parts)
    out.backward(tensors([out.shape], dtype)[0].detach())
    of_norm = norm.weight.grad.clone(), norm.bias.grad.clone()
    return parts.dtype, [out.astype(FLOAT32), x.grad, *of_norm, linear.weight.grad.clone()]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("window", "shift"), [(3, 1), (3, 0), (6, 3), (2, 1), (1, 0)])
def test_norm_writes_the_windows_of_its_result(window, shift, dtype):
    norm, linear = paddle.nn.LayerNorm(21), paddle.nn.Linear(21, 11)
    norm.weight.set_value(paddle.linspace(-1, 2, 21))

    def in_two(x):
        return swin.windows(layers.product_norm(x, norm), window, shift)

    _, expected = gradients_of(in_two, dtype, norm, linear)
    actual_dtype, actual = gradients_of(lambda x: swin.norm_windows(x, norm, window, shift), dtype, norm, linear)
    assert actual_dtype == getattr(paddle, dtype)
    for one, other in zip(actual, expected, strict=True):  # the same numbers in another place
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_windows_that_do_not_divide_the_maps_are_left_to_the_operators():
    kernel = half_cpu.kernels.find("onednn").kernels["norm_windows"]
    norm, x = paddle.nn.LayerNorm(4), paddle.ones([1, 6, 6, 4])
    for window, shift in ((4, 1), (3, 3), (3, -1)):
        assert kernel(None, (x, norm, window, shift), {"dtype": paddle.bfloat16}) is NotImplemented
    assert kernel(None, (x.flatten(1, 2), norm, 3, 1), {"dtype": paddle.bfloat16}) is NotImplemented


@pytest.mark.parametrize("norm", [paddle.nn.Identity(), paddle.nn.LayerNorm([6, 4]), paddle.nn.GroupNorm(2, 6)])
def test_windows_of_another_norm_are_those_of_its_result(norm):
    (x,) = tensors([(2, 6, 6, 4)], FLOAT32)
    with build_precision("auto", dtype=HALVES[0]).forward_context():
        expected, actual = swin.windows(norm(x), 3, 1), swin.norm_windows(x, norm, 3, 1)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.numpy(), expected.numpy())
