"""Views of all of a tensor."""

import paddle
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
