"""What a kernel keeps for its backward pass is that by then, or the backward pass is refused, as Paddle's own are."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.onednn_runs import ALL, tensors

ROWS, IMAGES = (4, 64, 160), (2, 32, 24, 24)  # of float32 too more elements than are left to Paddle
LABELS = paddle.to_tensor(np.random.default_rng(0).integers(0, 160, ROWS[:2]))

# what is computed from x and a second tensor, and whether x, the second tensor (1) or the result (2) is written
KEPT = {
    "matmul-left": (lambda x, w: x @ w, (160, 160), 0),
    "matmul-right": (lambda x, w: x @ w, (160, 160), 1),
    "linear": (F.linear, (160, 160), 1),
    "multiply": (lambda x, y: x * y, ROWS, 0),
    "multiply-row": (lambda x, y: x * y, (160,), 1),
    "divide": (lambda x, y: x / (y * y + 1.0), ROWS, 0),
    "maximum": (paddle.maximum, ROWS, 1),
    "max": (lambda x, _: x.max(-1), (1,), 2),
    "norm": (lambda x, _: x.norm(axis=-1), (1,), 0),
    "gelu": (lambda x, _: F.gelu(x), (1,), 0),
    "sigmoid": (lambda x, _: F.sigmoid(x), (1,), 2),
    "silu": (lambda x, _: F.silu(x), (1,), 0),
    "softmax": (lambda x, _: F.softmax(x), (1,), 2),
    "softmax-columns": (lambda x, _: F.softmax(x, axis=1), (1,), 2),
    "layer_norm": (lambda x, w: F.layer_norm(x, [160], w, paddle.zeros_like(w)), (160,), 1),
    "attention": (lambda x, k: F.scaled_dot_product_attention(*[one.reshape([4, 64, 4, 40]) for one in (x, k, k)]),
                  ROWS, 1),
    "conv2d": (F.conv2d, (32, 32, 3, 3), 1),
    "conv2d_transpose": (F.conv2d_transpose, (32, 32, 2, 2), 1),
    "group_norm": (lambda x, w: F.group_norm(x, 4, 1e-5, w, paddle.zeros_like(w)), (32,), 1),
    "batch_norm": (
        lambda x, w: F.batch_norm(x, paddle.zeros([32]), paddle.ones([32]), w, paddle.zeros_like(w), training=True),
        (32,), 1),
}  # fmt: skip


def gradients(function, leaves, written):
    """Return the gradients of leaves, where one of the tensors of the call is written before the backward pass."""
    for leaf in leaves:
        leaf.clear_gradient(False)
    with half_cpu.dispatch():
        x, other = (leaf.scale(2.0) for leaf in leaves)
        call = x, other, function(x, other)
        slope = call[2].astype("float32").detach()  # by which a sum of probabilities changes
        with paddle.no_grad():
            written is not None and call[written].scale_(3.0)
        paddle.autograd.backward([call[2]], [slope.astype(call[2].dtype)])
    return [None if leaf.grad is None else leaf.grad.astype("float32").numpy() for leaf in leaves]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", KEPT)
def test_backward_pass_of_what_was_written_since_is_refused_or_right(name, dtype):
    function, shape, written = KEPT[name]
    leaves = tensors([IMAGES if shape[0] == 32 else ROWS, shape], dtype)
    wanted = gradients(function, leaves, None)
    try:
        actual = gradients(function, leaves, written)
    except (OSError, RuntimeError) as error:
        assert "in place" in str(error) or "inplace" in str(error)
        return
    assert dtype != "float32", "Paddle refuses it"
    for one, other in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ALL)
def test_labels_and_masks_that_were_written_since_are_refused(dtype):
    (leaf,) = tensors([ROWS], dtype)
    labels, mask = LABELS.clone(), paddle.ones(ROWS, "bool")
    with half_cpu.dispatch():
        losses = F.cross_entropy(leaf.scale(2.0), labels), paddle.where(mask, leaf, leaf.scale(2.0))
        labels.zero_()
        mask[0] = False
        for loss in losses:
            with pytest.raises((OSError, RuntimeError), match="in.?place"):
                loss.sum().backward()


@pytest.mark.parametrize("dtype", ALL)
def test_what_no_backward_pass_needs_may_be_written(dtype):
    leaf, other = tensors([ROWS, ROWS], dtype)
    with half_cpu.dispatch():
        x = leaf.scale(2.0)
        result = F.relu(x + other)
        with paddle.no_grad():
            x.zero_()
        result.sum().backward()
    wanted = 2.0 * (leaf.astype("float32").scale(2.0) + other.astype("float32") > 0).astype("float32")
    np.testing.assert_array_equal(leaf.grad.astype("float32"), wanted)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["linear", "gelu", "conv2d"])
def test_what_hooks_keep_of_weights_that_an_optimizer_wrote_is_what_it_was(name, dtype):
    """As those of `recompute(use_reentrant=False)`, which give the backward pass tensors that nobody ever wrote."""
    function, shape, _ = KEPT[name]
    leaves = tensors([IMAGES if shape[0] == 32 else ROWS, shape], dtype)
    with paddle.no_grad():
        for leaf in leaves:
            leaf.scale_(0.5)
    hooks = paddle.autograd.saved_tensors_hooks(
        lambda x: x.astype("float32").numpy(), lambda kept: paddle.to_tensor(kept).astype(dtype))  # fmt: skip
    found = []
    for kept in (contextlib.nullcontext(), hooks):
        with half_cpu.dispatch(), kept:
            function(*leaves).sum().backward()
        found.append([leaf.grad.astype("float32").numpy() for leaf in leaves if leaf.grad is not None])
        for leaf in leaves:
            leaf.clear_gradient(False)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ALL)
def test_batches_of_one_norm_before_a_backward_pass_update_its_statistics(dtype):
    norm = paddle.nn.BatchNorm2D(32)
    (leaf,) = tensors([IMAGES], dtype)
    with half_cpu.dispatch():
        (norm(leaf).sum() + norm(leaf.scale(2.0)).sum()).backward()
    assert leaf.grad is not None and norm.weight.grad is not None


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["linear", "multiply-row", "gelu", "softmax", "attention", "conv2d", "batch_norm"])
def test_second_derivatives_of_a_kernel_are_refused(name, dtype):
    """The gradient that a kernel returns has none of its own: a sum of others with it would be wrong without a word."""
    function, shape, _ = KEPT[name]
    leaves = tensors([IMAGES if shape[0] == 32 else ROWS, shape], dtype)
    with half_cpu.dispatch():
        result = function(*leaves)
    needed = leaves[:1] if shape == (1,) else leaves
    with pytest.raises((OSError, RuntimeError), match="no second derivatives"):
        paddle.grad([result], needed, [paddle.ones_like(result)], create_graph=True)


@pytest.mark.parametrize("dtype", ALL)
def test_second_derivatives_through_a_sum_are_refused_only_where_it_would_lose_them(dtype):
    (x,) = tensors([(4, 8)], dtype)
    with half_cpu.dispatch():
        total, inner = x.sum(), x.sum(-1)
    paddle.grad([total], x, create_graph=True)  # a constant
    with pytest.raises((OSError, RuntimeError), match="no second derivatives"):
        paddle.grad([inner.astype("float32") ** 3], x, create_graph=True)


def test_second_derivatives_by_the_reference_are_paddles():
    leaf, weight = tensors([(4, 8), (8, 8)], "float32")
    with half_cpu.dispatch(backend="reference"):
        (first,) = paddle.grad([F.tanh(leaf @ weight).sum()], [leaf], create_graph=True)
        (first * first).sum().backward()
    plain, other = (one.detach() for one in (leaf, weight))
    plain.stop_gradient = False
    (first,) = paddle.grad([F.tanh(plain @ other).sum()], [plain], create_graph=True)
    (first * first).sum().backward()
    np.testing.assert_array_equal(leaf.grad, plain.grad)
