"""half_cpu.dispatch: what is patched, when, and how policies and backends are consulted."""

import paddle
import pytest

from image_classification import half_cpu


class CastEverything:
    def __init__(self, dtype):
        self.dtype = dtype
        self.seen = []

    def cast(self, op_name, tensors):
        self.seen.append(op_name)
        return self.dtype


def test_dispatch_after_exit_restores_every_reference():
    before = (paddle._C_ops.matmul, paddle.linalg.matmul, paddle.Tensor.__add__)
    with half_cpu.dispatch():
        inside = (paddle._C_ops.matmul, paddle.linalg.matmul, paddle.Tensor.__add__)
        assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert (paddle._C_ops.matmul, paddle.linalg.matmul, paddle.Tensor.__add__) == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_policy_cast_of_matmul_gives_its_dtype_and_float32_gradients(dtype):
    x = paddle.randn([2, 3])
    weight = paddle.randn([3, 4])
    weight.stop_gradient = False
    policy = CastEverything(dtype)
    with half_cpu.dispatch(policy):
        y = paddle.matmul(x, weight)
    assert y.dtype == getattr(paddle, dtype)
    assert policy.seen == ["matmul"]
    y.astype("float32").sum().backward()
    assert weight.grad.dtype == paddle.float32
