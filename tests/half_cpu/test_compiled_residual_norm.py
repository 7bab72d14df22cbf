"""A residual sum and its layer norm in one pass, against the two operators one after the other."""

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.half_cpu import compiled_library, compiled_residual_norm
from image_classification.layers import DropPath, residual_norm
from tests.helpers.onednn_runs import HALVES, ROUNDING, by_threads, needs_onednn
from tests.helpers.policies import Policy

pytestmark = [needs_onednn, pytest.mark.skipif(compiled_library.load() is None, reason="needs a C++ compiler")]
SHAPES = [(1, 1, 1), (2, 3, 31), (4, 33, 50), (3, 7, 5, 96), (2, 197, 384)]
LAST_BIT = 2.0**-23


@pytest.fixture
def calls(monkeypatch):
    """Return the list of the shapes that the kernel served, so that no test compares the operators with themselves."""
    served, apply = [], compiled_residual_norm.ResidualNorm.apply
    monkeypatch.setattr(
        compiled_residual_norm.ResidualNorm, "apply", lambda x, *others: served.append(x.shape) or apply(x, *others)
    )
    return served


def operands(shape, dtype, seed=0):
    """Return (x, branch, norm) whose gradients are asked for."""
    paddle.seed(seed)
    x, branch = paddle.randn(shape), paddle.randn(shape).astype(dtype).detach()
    x.stop_gradient = branch.stop_gradient = False
    norm = nn.LayerNorm(shape[-1], epsilon=1e-3)
    for weight in norm.parameters():
        weight.set_value(paddle.randn(weight.shape))
    return x, branch, norm


def layer_scale(shape):
    """Return a scale of the last axis whose gradient is asked for."""
    paddle.seed(9)
    scale = paddle.randn(shape[-1:])
    scale.stop_gradient = False
    return scale


def outcome(function, x, branch, norm, dtype, drop_path=None, reads=("total", "norm"), scale=None):
    """Return [sum, norm, gradients of x, branch, the norm's scale and shift, and the scale], float32."""
    with amp.build_precision("auto", dtype).forward_context():
        paddle.seed(7)  # of the paths that are dropped
        found = dict(zip(("total", "norm"), function(x, branch, norm, scale, drop_path), strict=True))
        assert (found["total"].dtype, found["norm"].dtype) == (paddle.float32, getattr(paddle, dtype))
        paddle.seed(8)
        slopes = [paddle.randn(x.shape).astype(found[name].dtype) for name in reads]
        paddle.autograd.backward([found[name] for name in reads], slopes)
    leaves = (x, branch, norm.weight, norm.bias, *([] if scale is None else [scale]))
    return [each.astype("float32").numpy() for each in (*found.values(), *(leaf.grad for leaf in leaves))]


def assert_alike(own, expected, dtype):
    """Where a product is fused with a sum, float32 numbers may be one bit apart, and half ones one rounding. The sums
    over rows of what a layer scale's gradient consists of may be two bits apart."""
    bounds = [LAST_BIT, ROUNDING[dtype]] * 2 + [LAST_BIT * (len(own) - 5)] * (len(own) - 4)
    for one, other, bound in zip(own, expected, bounds, strict=True):
        assert np.abs(one - other).max() <= bound * np.abs(other).max()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_sum_and_norm_and_all_gradients_are_those_of_the_operators(is_scaled, shape, rate, dtype, calls):
    drop_path = DropPath(rate)
    results = [
        outcome(function, *operands(shape, dtype), dtype, drop_path, scale=layer_scale(shape) if is_scaled else None)
        for function in (residual_norm, residual_norm.__wrapped__)
    ]
    assert len(calls) == 1
    assert_alike(*results, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_layer_scale_has_a_gradient_in_its_format(dtype, calls):
    """The operators round the branch times the scale to that format, the kernel does not."""
    shape, results = (4, 33, 50), []
    for function in (residual_norm, residual_norm.__wrapped__):
        scale = layer_scale(shape).astype(dtype).detach()
        scale.stop_gradient = False
        results.append(outcome(function, *operands(shape, dtype), dtype, scale=scale))
        assert scale.grad.dtype is scale.dtype
    assert len(calls) == 1
    for one, other in zip(*results, strict=True):
        assert np.abs(one - other).max() <= 2 * ROUNDING[dtype] * np.abs(other).max()


def test_norm_that_nobody_reads_adds_nothing_to_gradients(calls):
    x, branch, norm = operands((2, 5, 48), HALVES[-1])
    with amp.build_precision("auto", HALVES[-1]).forward_context():
        total, _ = residual_norm(x, branch, norm)
    total.backward(paddle.ones_like(total))
    assert (x.grad == 1).all() and (branch.grad.astype("float32") == 1).all() and (norm.weight.grad == 0).all()
    assert len(calls) == 1


def test_sum_that_nobody_else_reads_has_the_gradient_of_the_norm(calls):
    dtype = HALVES[-1]
    functions = residual_norm, residual_norm.__wrapped__
    assert_alike(*(outcome(each, *operands((2, 5, 48), dtype), dtype, reads=["norm"]) for each in functions), dtype)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_that_are_not_finite_stay_in_their_rows(dtype, calls):
    x, branch, norm = operands((2, 40, 33), dtype)
    with paddle.no_grad():
        x[0, 3, 5], x[1, 39, 0] = float("nan"), float("inf")
        branch[1, 7, 32] = float("-inf")
    rows = np.zeros((2, 40), bool)
    rows[0, 3] = rows[1, 39] = rows[1, 7] = True
    total, normed, x_gradient, branch_gradient, *_ = outcome(residual_norm, x, branch, norm, dtype)
    assert len(calls) == 1
    np.testing.assert_array_equal(~np.isfinite(total).all(-1), rows)
    for each in (normed, x_gradient, branch_gradient):
        np.testing.assert_array_equal(np.isnan(each).all(-1), rows)
        assert np.isfinite(each[~rows]).all()


def test_strided_operands_are_read_where_they_lie(calls):
    x, branch, norm = operands((6, 4, 40), HALVES[-1])
    turned = [each.transpose([1, 0, 2]).detach() for each in (x, branch)]
    dense = [each.transpose([1, 0, 2]).contiguous().detach() for each in (x, branch)]
    assert not turned[0].is_contiguous()
    results = []
    for pair in (turned, dense):
        for each in pair:
            each.stop_gradient = False
        norm.clear_gradients()
        results.append(outcome(residual_norm, *pair, norm, HALVES[-1]))
    assert len(calls) == 2
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_numbers_of_threads_give_the_same_bits(calls):
    def compute():
        given = *operands((5, 130, 96), HALVES[-1]), HALVES[-1], DropPath(0.5)
        return outcome(residual_norm, *given, scale=layer_scale([96]))

    results = by_threads((1, 2, 3), compute)
    assert len(calls) == 3
    for other in results[1:]:
        for one, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(one, first)


@pytest.mark.parametrize("frozen", ["x", "branch", "scale", "shift", "layer scale"])
def test_frozen_operand_gets_no_gradient(frozen, calls):
    x, branch, norm = operands((2, 5, 48), HALVES[-1])
    own = layer_scale([48])
    leaves = {"x": x, "branch": branch, "scale": norm.weight, "shift": norm.bias, "layer scale": own}
    leaves[frozen].stop_gradient = True
    with amp.build_precision("auto", HALVES[-1]).forward_context():
        total, normed = residual_norm(x, branch, norm, own)
        (total.sum() + normed.astype("float32").sum()).backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is None] == [frozen]
    assert len(calls) == 1


def test_sum_that_was_written_in_place_since_is_refused(calls):
    with amp.build_precision("auto", HALVES[-1]).forward_context():
        total, normed = residual_norm(*operands((2, 5, 48), HALVES[-1]))
        with paddle.no_grad():
            total.add_(paddle.ones_like(total))
        with pytest.raises((OSError, RuntimeError), match="written in place"):
            normed.sum().backward()
    assert len(calls) == 1


def test_what_the_kernel_does_not_know_is_left_to_the_operators(calls):
    dtype = HALVES[-1]
    x, branch, norm = operands((2, 5, 48), dtype)
    scale = paddle.randn([5, 48])
    hooked = nn.LayerNorm(48)
    hooked.register_forward_post_hook(lambda layer, given, result: result * 2)
    mixed = nn.LayerNorm(48)
    mixed.bias = mixed.create_parameter([48], dtype=dtype, is_bias=True)
    plain = nn.LayerNorm(48, weight_attr=False), nn.LayerNorm([5, 48]), hooked, mixed
    cases = [(x, branch, norm, scale), *((x, branch, each) for each in plain), (x[0, 0], branch[0, 0], norm)]
    for case in cases:
        results = []
        for function in (residual_norm, residual_norm.__wrapped__):
            with amp.build_precision("auto", dtype).forward_context():
                results.append([each.astype("float32").numpy() for each in function(*case)])
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(calls) == 0
    with amp.build_precision("auto", dtype).forward_context(), pytest.raises(ValueError):
        residual_norm(x, branch[:, :3], norm)


def test_branch_of_another_format_than_the_norm_is_left_to_the_operators(calls):
    x, branch, norm = operands((2, 5, 48), "float32")
    with half_cpu.dispatch(policy=Policy("float32", linear=HALVES[-1])):
        total, normed = residual_norm(x, branch, norm)
    assert (total.dtype, normed.dtype) == (paddle.float32, getattr(paddle, HALVES[-1]))
    assert len(calls) == 0
