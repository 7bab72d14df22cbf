"""half_cpu.dispatch with a policy: what is asked, in which order, and what its answers do."""

import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.policies import Policy


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_policy_cast_of_matmul_gives_its_dtype_and_float32_gradients(dtype):
    x = paddle.randn([2, 3])
    weight = paddle.randn([3, 4])
    weight.stop_gradient = False
    policy = Policy(dtype)
    with half_cpu.dispatch(policy):
        y = paddle.matmul(x, weight)
    assert y.dtype == getattr(paddle, dtype)
    assert policy.seen == ["matmul"]
    y.astype("float32").sum().backward()
    assert weight.grad.dtype == paddle.float32


def test_policy_that_asks_for_float32_widens_half_inputs_and_keeps_the_result_wide():
    x = paddle.ones([2, 3]).astype("bfloat16")
    with half_cpu.dispatch(Policy(softmax="float32")):
        assert F.softmax(x).dtype == paddle.float32
        assert F.relu(x).dtype == paddle.bfloat16


def test_policy_without_opinion_on_float32_changes_nothing():
    x, y = paddle.randn([5, 7]), paddle.randn([7, 3])
    expected = F.gelu(x @ y) * 0.3 + 1
    with half_cpu.dispatch(Policy(), backend="reference"):
        actual = F.gelu(x @ y) * 0.3 + 1
    assert actual.dtype == paddle.float32
    assert bool((actual == expected).all())


def test_policy_sees_methods_and_functions_under_one_name():
    policy = Policy()
    x = paddle.ones([2, 2])
    with half_cpu.dispatch(policy):
        _ = x + x, paddle.add(x, x), x * 2.0, x / x, x @ x, x.matmul(x), x**2, x**x, x - x, x > x, -x, abs(x), x.sum()
    expected = "add add scale divide matmul matmul pow elementwise_pow subtract greater_than scale abs sum"
    assert " ".join(policy.seen) == expected


def test_policy_gets_all_tensors_in_order_also_from_lists():
    class Order:
        def cast(self, op_name, tensors):
            if op_name == "concat":
                seen.extend(tensors)

    seen = []
    tensors = [paddle.ones([1]), paddle.zeros([2], "float16"), paddle.ones([3], "float16")]
    with half_cpu.dispatch(Order()):
        paddle.concat(tensors)
    assert all(a is b for a, b in zip(seen, tensors, strict=True))


def test_policy_has_no_say_in_casts_creation_and_in_place_operators():
    policy = Policy("float16")
    x = paddle.ones([2])
    with half_cpu.dispatch(policy):
        x.astype("bfloat16")
        paddle.zeros([2])
        paddle.full_like(x, 2.0)
        x.add_(x)
        F.relu_(x)
        x[0] = 3.0
        x[0]
    assert policy.seen == []
    assert x.dtype == paddle.float32


def test_policy_for_batch_norm_casts_the_images_and_not_the_statistics():
    norm = paddle.nn.BatchNorm2D(3)
    policy = Policy("float16")
    with half_cpu.dispatch(policy):
        y = norm(paddle.randn([2, 3, 4, 4]))
    assert policy.seen == ["batch_norm"]
    assert y.dtype == paddle.float16
    assert norm._mean.dtype == norm.weight.dtype == paddle.float32
    assert float(norm._mean.abs().sum()) > 0


def test_policy_that_is_a_name_is_refused_when_it_is_given():
    with pytest.raises(ValueError, match=r"a policy has a method cast\(op_name, tensors\), 'bfloat16' has none"):
        half_cpu.dispatch("bfloat16")
