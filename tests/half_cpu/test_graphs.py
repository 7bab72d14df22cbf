"""Operators in graphs that are not chains: operands and gradients that lie in memory in another order, and tensors
which something else reads too. Each is compared with the same operator alone."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import branches, compiled_concat, compiled_worth, kernels
from tests.helpers.onednn_cases import CASES
from tests.helpers.onednn_runs import ALL, BFLOAT16, FLOAT32, needs_onednn, tensors
from tests.helpers.operator_cases import EXACT, ROUNDED

pytestmark = needs_onednn

# bfloat16 has the graphs of float16 and the primitives of float32.
FORMATS = [pytest.param(dtype, marks=pytest.mark.slow if dtype == BFLOAT16 and len(ALL) > 2 else ()) for dtype in ALL]

OPERATORS = {
    **{name: (function, shapes) for name, (_, function, shapes, _) in CASES.items()},
    **{f"{name} ": (function, shapes) for name, (_, function, shapes) in (EXACT | ROUNDED).items()},
    "sort-as-it-is": (lambda x: x.sort(1), [(3, 5, 33)]),
    "topk-as-it-is": (lambda x: x.topk(3)[0], [(3, 5, 33)]),
    "attention-of-many": (lambda q: F.scaled_dot_product_attention(q, q * 0.5, q.flip(1)), [(1, 300, 2, 8)]),
}


@pytest.fixture(autouse=True)
def no_tensor_is_too_small(monkeypatch):
    for module in (compiled_worth, compiled_concat, branches):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(branches, "LARGE_HALF", 1)
    backend = kernels.find("onednn")
    monkeypatch.setattr(kernels, "find", lambda name: backend)
    for name in list(backend.left):
        monkeypatch.delitem(backend.left, name)


def turned(tensor):
    """Return the tensor as a view whose axes lie in memory in the reverse order."""
    axes = list(reversed(range(tensor.ndim)))
    return tensor.transpose(axes).clone().transpose(axes) if tensor.ndim > 1 else tensor


def gradients(function, inputs, operands=lambda leaf: leaf, slope=lambda result: result, further=0.0):
    """Return what comes back to leaves: `operands` of them are read, and a reader of the result gives the `slope`;
    `further` is what each leaf gets beside."""
    leaves = [tensor.detach() for tensor in inputs]
    for leaf in leaves:
        leaf.stop_gradient = False
    with half_cpu.dispatch():
        result = function(*map(operands, leaves))
        if result.stop_gradient:
            return []
        result.retain_grads()
        (weight,) = tensors([result.shape], FLOAT32, seed=7)
        loss = (slope(result).astype(FLOAT32) * slope(weight.detach())).sum()
        for leaf in leaves if further else ():
            beside = (leaf.astype(FLOAT32) * further).sum()
            for _ in range(16):  # a longer way back, so that it comes last
                beside = beside * 1.0
            loss = loss + beside
        loss.backward()
    assert_same([result.grad.astype(FLOAT32).numpy()], [weight.numpy()], str(result.dtype).removeprefix("paddle."))
    return [None if leaf.grad is None else leaf.grad.astype(FLOAT32).numpy() - further for leaf in leaves]


def assert_same(found, expected, dtype, moved=0.0):
    """Other kernels may serve other orders: a few roundings of the largest number, and of what was added to it."""
    unit = {"float16": 2.0**-10, BFLOAT16: 2.0**-7, FLOAT32: 2.0**-18}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            one, other = (np.where(np.isinf(other), 0.0, array) for array in (one, other))  # a quotient overflows
            assert np.linalg.norm(one - other) <= 4 * unit * (np.linalg.norm(other) + moved * np.sqrt(other.size))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", OPERATORS)
def test_gradients_do_not_depend_on_the_order_of_an_operand_in_memory(case, dtype):
    function, shapes = OPERATORS[case]
    inputs = tensors(shapes, dtype)
    assert_same(gradients(function, inputs, operands=turned), gradients(function, inputs), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", OPERATORS)
def test_gradients_do_not_depend_on_the_order_of_the_results_gradient(case, dtype):
    function, shapes = OPERATORS[case]
    inputs = tensors(shapes, dtype)

    def slope(result):
        return result.transpose(list(reversed(range(result.ndim)))) if result.ndim > 1 else result

    assert_same(gradients(function, inputs, slope=slope), gradients(function, inputs), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", OPERATORS)
def test_gradient_of_another_reader_comes_back_to_each_operand_once(case, dtype):
    """Paddle adds it in place to what the operator sent: two operands must not have been sent one tensor."""
    function, shapes = OPERATORS[case]
    inputs = tensors(shapes, dtype)
    expected = [np.zeros(tensor.shape, "float32") if one is None else one
                for tensor, one in zip(inputs, gradients(function, inputs), strict=False)]  # fmt: skip
    found = gradients(function, inputs, further=3.0)
    assert_same(found, expected, dtype, moved=3.0)


INDICES = {
    "channels": (slice(None), [7, 6, 6]),
    "channels-tensor": (slice(None), paddle.to_tensor([7, 6, 6])),
    "channels-mask": (slice(None), paddle.to_tensor([True, False] * 4)),
    "columns": (..., [1, 3]),
    "rows": (slice(None), slice(None), [1, 3]),
    "both": (slice(None), [1, 2], slice(None), [3, 4]),
    "of-a-sample": (1, slice(None), [1, 2]),
    "samples": [1, 0],
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", INDICES)
def test_strided_images_are_read_and_written_at_the_places_that_an_index_names(case, dtype):
    """As dense ones are by stock Paddle, which errs where they are strided."""
    index = INDICES[case]
    (dense,) = tensors([(2, 8, 5, 7)], dtype)
    strided = paddle.transpose(dense.transpose([0, 2, 3, 1]).clone(), [0, 3, 1, 2])
    assert not strided.is_contiguous()
    expected, before, slopes = dense.detach().astype(FLOAT32), dense.astype(FLOAT32).numpy(), []
    for x, context in ((expected, contextlib.nullcontext()), (strided.detach(), half_cpu.dispatch())):
        x.stop_gradient = False
        with context:
            part, whole = x[index], x * 1
            whole[index] = 0.25
            (part.astype(FLOAT32).sum() * 2 + whole.astype(FLOAT32).sum()).backward()
        slopes.append((part.astype(FLOAT32).numpy(), whole.astype(FLOAT32).numpy(), x.grad.astype(FLOAT32).numpy()))
        np.testing.assert_array_equal(x.astype(FLOAT32).numpy(), before)
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_array_equal(one, other)
