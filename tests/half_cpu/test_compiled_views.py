"""Views of all of a tensor."""

import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "view", [lambda x: x[:], lambda x: x[:, :4096], lambda x: x.flatten(0, 0), lambda x: x.reshape([8, -1])]
)
def test_view_of_a_whole_large_parameter_is_no_write_to_it(view, dtype):
    """Such as the position embeddings of as many tokens as there are."""
    x = paddle.ones([8, 4096], dtype)
    x.stop_gradient = False
    with half_cpu.dispatch():
        (view(x) * 2).sum().backward()
    assert x.inplace_version == 0
    assert (x.grad == 2).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", [
    lambda x: F.max_pool1d(x, 2),
    lambda x: F.adaptive_avg_pool1d(x, 1),
    lambda x: F.conv1d(x, paddle.ones([64, 64, 1], x.dtype)),
    lambda x: F.relu(F.max_pool2d(x.unsqueeze(2), [1, 2]).squeeze(2)),
], ids=["max_pool", "mean", "conv", "squeeze"])  # fmt: skip
def test_gradient_of_rows_seen_as_images_is_no_copy_of_single_numbers(function, dtype):
    """Paddle's own gradient of the view copies what kernels return, [B, 1, L, C] in memory, number by number."""
    orders, gradients = [], []
    for number_format in ("float32", dtype):
        x = paddle.cos(paddle.arange(2.0 * 64 * 512)).reshape([2, 64, 512]).astype(dtype).astype(number_format).detach()
        x.stop_gradient = False
        x.register_hook(lambda gradient: orders.append(gradient.strides))
        with half_cpu.dispatch() if orders else half_cpu.dispatch(backend="reference"):
            result = function(x)
        result.backward(paddle.ones_like(result))
        gradients.append(x.grad.astype("float32"))
    assert orders == [[64 * 512, 512, 1], [64 * 512, 1, 64]]
    assert (gradients[0] - gradients[1]).abs().max() <= 2**-8 * gradients[0].abs().max()  # one rounding to bfloat16
