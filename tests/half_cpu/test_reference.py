"""Every operator's half result and gradients equal float32 arithmetic on the half inputs, rounded once, bit for bit.

The float32 arithmetic is Paddle's own, outside the dispatch; the rounding is NumPy's.
"""

import functools
import os

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.half_cpu_cases import CASES
from tests.helpers.half_cpu_rounding import DTYPES, assert_rounded_once, bits, half_tensor, round_half, widen


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


# Rounding


@pytest.mark.parametrize("factor", [1.0, 1.0009765625, 1.5, 16.0, 0.5, 0.75, 2.0**-9], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_half_number_times_a_factor_is_rounded_once(dtype, factor):
    """All 65536 patterns, so overflow, subnormal numbers and ties are among them; forward and gradient."""
    patterns = np.arange(2**16, dtype=np.uint16)
    values = widen(patterns, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values * np.float32(factor) + np.float32(0)  # the scale operator adds a bias of zero: no -0
    x = half_tensor(values, dtype)
    x.stop_gradient = False
    with half_cpu.dispatch(backend="reference"):
        y = x * factor
    y.backward(half_tensor(values, dtype))
    wanted = round_half(expected, dtype)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(bits(y)[number], wanted[number])
    np.testing.assert_array_equal(bits(x.grad)[number], wanted[number])
    assert np.isnan(widen(bits(y), dtype))[~number].all()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (65504.0, 15.9921875, 65504.0),  # 65519.99...
        (65504.0, 16.0, np.inf),  # 65520
        (-65504.0, -16.0, -np.inf),
        (2048.0, 1.0, 2048.0),  # a tie: to even
        (2050.0, 1.0, 2052.0),
    ],
)
def test_float16_sum_overflows_from_65520_and_rounds_ties_to_even(left, right, expected):
    with half_cpu.dispatch(backend="reference"):
        total = half_tensor([left], "float16") + half_tensor([right], "float16")
    assert total.item() == expected


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_cast_to_float16_of_every_exponent_is_ieees(backend, wide):
    """Paddle's own cast makes up to 2^-14 of numbers around 2^-80, which softmax returns."""
    powers = 2.0 ** np.arange(-149, 128)
    values = np.concatenate([sign * powers * mantissa for sign in (1, -1) for mantissa in (1, 1.37, 1.99)])
    values = np.concatenate([values.astype("float32"), [0.0, -0.0, np.inf, -np.inf]]).astype(wide)
    x = paddle.to_tensor(values, stop_gradient=False)
    with np.errstate(over="ignore"), half_cpu.dispatch(backend=backend):
        np.testing.assert_array_equal(bits(x.astype("float16")), bits(paddle.to_tensor(values.astype("float16"))))
        probabilities = paddle.nn.functional.softmax(half_tensor([0.0, -57.0], "float16"))
        y = x.astype("float16")
    assert probabilities.astype("float32").tolist() == [1.0, 0.0]
    y.backward(paddle.ones_like(y))
    assert (x.grad == 1).all()


@pytest.mark.parametrize(("power", "factor", "expected"), [(-12, 2**-13, 0.0), (-12, 2**-12, 2**-24), (-12, 0, 0)])
def test_float16_product_up_to_2_to_the_minus_25_becomes_zero(power, factor, expected):
    x = half_tensor([2.0**power], "float16")
    with half_cpu.dispatch(backend="reference"):
        assert (x * half_tensor([factor], "float16")).item() == expected
        assert (x * half_tensor([factor * 1.0009765625], "float16")).item() == (2**-24 if factor else 0)


# Dtypes


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_dtype_follows_paddles_promotion(dtype):
    half, wide = paddle.ones([2, 2]).astype(dtype), paddle.ones([2, 2])
    other = wide.astype("bfloat16" if dtype == "float16" else "float16")
    scalar = paddle.to_tensor(0.5)
    with half_cpu.dispatch(backend="reference"):
        results = {
            half.dtype: [half * 0.1, 0.1 - half, half / 3, half**2, half * scalar, scalar + half, half * np.float32(2)],
            paddle.float32: [
                half + wide, wide @ half, half * other, paddle.concat([half, wide]), scalar * scalar.astype(dtype),
                paddle.where(wide > 0, half, wide), scalar.astype(dtype) * wide,
            ],
            paddle.float64: [half + wide.astype("float64")],
        }  # fmt: skip
    for wanted, tensors in results.items():
        assert [tensor.dtype for tensor in tensors] == [wanted] * len(tensors)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_of_empty_tensors_are_half(dtype, backend):
    empty, weight = paddle.zeros([0, 4]).astype(dtype), paddle.zeros([4, 3]).astype(dtype)
    with half_cpu.dispatch(backend=backend):
        results = [empty * 2.0, empty + empty, F.relu(empty), F.linear(empty, weight), weight[:0] * 2.0]
        joined = paddle.concat([results[2], weight.T])
    assert [result.dtype for result in (*results, joined)] == [weight.dtype] * 6
    assert [result.shape for result in results] == [[0, 4], [0, 4], [0, 4], [0, 3], [0, 3]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("asked", [(), ("return_counts",), ("return_inverse", "return_counts")], ids=str)
@pytest.mark.parametrize("function", [paddle.unique, paddle.unique_consecutive])
def test_results_that_nobody_asked_for_need_no_memory(function, asked, dtype):
    x, options = paddle.to_tensor([3.0, 3.0, 0.5, 3.0, -2.0]), dict.fromkeys(asked, True)
    expected = function(x, **options)
    with half_cpu.dispatch():
        results = function(x.astype(dtype), **options)
    first, *others = results if asked else [results]
    wanted, *wanted_others = expected if asked else [expected]
    assert str(first.dtype) == f"paddle.{dtype}" and first.astype("float32").tolist() == wanted.tolist()
    assert [one.tolist() for one in others] == [one.tolist() for one in wanted_others]


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_times_python_number_uses_the_number_in_float32(dtype):
    x = paddle.randn([100]).astype(dtype)
    with half_cpu.dispatch(backend="reference"):
        y = x * 0.1
    np.testing.assert_array_equal(bits(y), round_half(widen(bits(x), dtype) * np.float32(0.1), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_arguments_are_honoured(dtype):
    x, wide = paddle.randn([3, 50]).astype(dtype), paddle.randn([3, 50])
    half = x.dtype
    with half_cpu.dispatch(backend="reference"):
        results = {
            paddle.float32: [
                paddle.sum(x, 1, dtype="float32"), paddle.mean(x, 1, dtype="float32"), paddle.cumsum(x, 1, "float32"),
                F.softmax(x, dtype="float32"), x.astype("float32"), paddle.full_like(x, 1.0, "float32"),
            ],
            half: [
                paddle.sum(wide, 1, dtype=dtype), paddle.sum(wide, 1, dtype=half), paddle.ones_like(wide, dtype),
                paddle.zeros([2], dtype), paddle.full([2], 0.1, dtype), paddle.rand([2], dtype),
                paddle.randn([2], dtype), paddle.arange(0, 1, 0.1, dtype), paddle.linspace(0, 1, 5, dtype),
                paddle.eye(3, dtype=dtype), paddle.to_tensor([0.1], dtype),
            ],
            paddle.int64: [paddle.argmax(x, 1), paddle.topk(x, 2)[1], paddle.argsort(x)],
        }  # fmt: skip
    for wanted, tensors in results.items():
        assert [tensor.dtype for tensor in tensors] == [wanted] * len(tensors)
    expected = paddle.sum(x.astype("float32"), 1)
    np.testing.assert_array_equal(results[paddle.float32][0].numpy(), expected.numpy())
    assert_rounded_once(results[half][0], paddle.sum(wide, 1), dtype, "sum with dtype")


def test_accuracy_of_half_logits_is_float32():
    logits = paddle.to_tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]).astype("float16")
    with half_cpu.dispatch(backend="reference"):
        accuracy = paddle.metric.accuracy(logits, paddle.to_tensor([[1], [1], [1]]))
    assert accuracy.dtype == paddle.float32
    assert accuracy.item() == np.float32(2) / np.float32(3)


# Random operators and several operators in a row


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_drops_what_float32_drops_and_rounds_the_rest(dtype):
    wide = paddle.randn([8, 64]).astype(dtype).astype("float32")
    half = wide.astype(dtype)
    half.stop_gradient = wide.stop_gradient = False
    paddle.seed(5)
    expected = F.dropout(wide, 0.3)
    paddle.seed(5)
    with half_cpu.dispatch(backend="reference"):
        actual = F.dropout(half, 0.3)
    assert_rounded_once(actual, expected, dtype, "output")
    assert 0.2 < float((actual.astype("float32") == 0).astype("float32").mean()) < 0.4
    gradient = paddle.randn([8, 64]).astype(dtype)
    expected.backward(gradient.astype("float32"))
    actual.backward(gradient)
    assert_rounded_once(half.grad, wide.grad, dtype, "gradient")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_the_chain_of_its_operators_each_rounded(dtype, causal):
    paddle.seed(0)
    query, key, value = (paddle.randn([2, 5, 3, 4]).astype(dtype) for _ in range(3))
    for tensor in (query, key, value):
        tensor.stop_gradient = False
    with half_cpu.dispatch(backend="reference"):
        actual = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert actual.dtype == query.dtype
    wide = [tensor.astype("float32").transpose([0, 2, 1, 3]).detach() for tensor in (query, key, value)]
    scores = wide[0] @ wide[1].transpose([0, 1, 3, 2]) * 4**-0.5
    if causal:
        scores = paddle.where(paddle.tril(paddle.ones([5, 5])) > 0, scores, paddle.full([2, 3, 5, 5], -1e9))
    expected = (F.softmax(scores) @ wide[2]).transpose([0, 2, 1, 3])
    # Four operators, each with one rounding of at most half an ulp of values around 1.
    tolerance = 4 * {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(actual.astype("float32").numpy(), expected.numpy(), rtol=0, atol=tolerance)
    actual.astype("float32").sum().backward()
    assert [tensor.grad.dtype for tensor in (query, key, value)] == [query.dtype] * 3
    assert all(bool(paddle.isfinite(tensor.grad.astype("float32")).all()) for tensor in (query, key, value))


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_gradients_of_a_tensor_used_twice_are_added(dtype):
    x = paddle.randn([50]).astype(dtype)
    x.stop_gradient = False
    with half_cpu.dispatch(backend="reference"):
        y, z = x * 1.5, x * 0.75
    y.backward(paddle.ones_like(y).astype(dtype))
    first = widen(bits(x.grad), dtype)
    z.backward(paddle.ones_like(z).astype(dtype))
    np.testing.assert_array_equal(bits(x.grad), round_half(first + np.float32(0.75), dtype))


def _batch_norm(training):
    return lambda x, scale, shift: F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]), scale, shift, training)


NORMS = {
    "layer": lambda x, scale, shift: F.layer_norm(x, [4], scale, shift),
    "group": lambda x, scale, shift: F.group_norm(x.unsqueeze(-1), 2, 1e-5, scale, shift),
    "instance": lambda x, scale, shift: F.instance_norm(x.reshape([2, 4, 3, 3]), weight=scale, bias=shift),
    "batch": _batch_norm(True),
    "batch-evaluation": _batch_norm(False),
}


def by_backward(loss, tensors):
    loss.backward()
    return [None if each.grad is None else each.grad.astype("float32").numpy() for each in tensors]


def by_grad(loss, tensors):
    """By which steps are recorded: it leaves out what leads to no tensor that it is asked for."""
    found = iter(paddle.grad(loss, [each for each in tensors if not each.stop_gradient]))
    return [None if each.stop_gradient else next(found).astype("float32").numpy() for each in tensors]


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gradients_of", [by_backward, by_grad])
def test_gradients_of_a_norm_do_not_depend_on_what_else_is_frozen(norm, dtype, backend, gradients_of):
    """Of a layer norm whose scale is frozen Paddle's is that of a scale of one; other norms leave out the shift's."""
    values = [paddle.randn([18, 4]).astype(dtype), paddle.randn([4]), paddle.randn([4])]
    slope, expected = paddle.randn([18 * 4]), None
    for frozen in [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]:
        tensors = [value.detach() for value in values]
        for place, tensor in enumerate(tensors):
            tensor.stop_gradient = place in frozen
        with half_cpu.dispatch(backend=backend):
            gradients = gradients_of((NORMS[norm](*tensors).flatten().astype("float32") * slope).sum(), tensors)
        expected = gradients if expected is None else expected
        for place, gradient in enumerate(gradients):
            assert (gradient is None) == (place in frozen)
            if gradient is not None:
                # rounded again where a kernel of the same norm does not compute all of them
                np.testing.assert_allclose(gradient, expected[place], rtol=2.0**-7, atol=1e-2)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alone", ["scale", "shift"])
@pytest.mark.parametrize("norm", NORMS)
def test_norm_with_a_scale_or_a_shift_alone_has_the_gradients_of_one_with_both(norm, alone, dtype, backend):
    """Paddle's own batch and instance norm give one alone no gradient, not even memory that a cast could read."""
    x, slope, found = paddle.randn([18, 4]).astype(dtype), paddle.randn([18 * 4]), []
    given = paddle.ones([4]) if alone == "scale" else paddle.zeros([4])
    for other in (paddle.zeros([4]) if alone == "scale" else paddle.ones([4]), None):
        tensors = [tensor.detach() for tensor in (x, given)]
        for tensor in tensors:
            tensor.stop_gradient = False
        parameters = (tensors[1], other) if alone == "scale" else (other, tensors[1])
        with half_cpu.dispatch(backend=backend):
            (NORMS[norm](tensors[0], *parameters).flatten().astype("float32") * slope).sum().backward()
        found.append([tensor.grad.astype("float32").numpy() for tensor in tensors])
    if norm == "group" and (alone == "shift" and backend == "reference"):
        return  # Paddle's own gradient of the images is wrong
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2.0**-7, atol=1e-2)


def _recurrent(x, weight):
    paddle.seed(2)
    layer = paddle.nn.SimpleRNN(4, 5)
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    layer._all_weights[0] = weight
    return layer(x)[0]


TWO_OPERANDS = {
    "prelu": (F.prelu, [(2, 4, 3, 3), (4,)]),
    "grid_sample": (lambda x, grid: F.grid_sample(x, grid.tanh()), [(2, 3, 4, 4), (2, 3, 3, 2)]),
    "grid_sample-reflection": (
        lambda x, grid: F.grid_sample(x, grid.tanh(), padding_mode="reflection"), [(2, 3, 4, 4), (2, 3, 3, 2)]),
    "broadcast_tensors": (
        lambda x, y: functools.reduce(paddle.multiply, paddle.broadcast_tensors([x, y])), [(2, 3, 4), (3, 1)]),
    "cross": (paddle.cross, [(2, 3), (2, 3)]),
    "meshgrid": (lambda x, y: functools.reduce(paddle.multiply, paddle.meshgrid(x, y)), [(3,), (4,)]),
    "addmm": (lambda x, row: paddle.addmm(row, x, paddle.ones([3, 4], x.dtype)), [(2, 3), (4,)]),
    "multi_dot": (lambda x, y: paddle.linalg.multi_dot([x, y, paddle.ones([4, 2], x.dtype)]), [(2, 3), (3, 4)]),
    "deformable_conv": (
        lambda x, offsets: paddle.vision.ops.deform_conv2d(
            x, offsets, paddle.ones([3, 2, 3, 3], x.dtype), mask=paddle.ones([1, 9, 3, 3], x.dtype)),
        [(1, 2, 5, 5), (1, 18, 3, 3)]),
    "solve": (lambda x, y: paddle.linalg.solve(x + 4 * paddle.eye(3), y), [(3, 3), (3, 2)]),
    "cholesky_solve": (lambda x, y: paddle.linalg.cholesky_solve(x, y + 4 * paddle.eye(3)), [(3, 2), (3, 3)]),
    "send_ue_recv": (
        lambda x, y: paddle.geometric.send_ue_recv(x, y, *[paddle.to_tensor([0, 1])] * 2), [(3, 2), (2, 2)]),
    "send_uv": (lambda x, y: paddle.geometric.send_uv(x, y, *[paddle.to_tensor([0, 1])] * 2), [(3, 2), (3, 2)]),
    "triangular_solve": (lambda x, y: paddle.linalg.triangular_solve(x + 4 * paddle.eye(3), y), [(3, 3), (3, 2)]),
    "hsigmoid_loss": (lambda x, w: F.hsigmoid_loss(x, paddle.to_tensor([0, 1, 2]), 4, w), [(3, 5), (3, 5)]),
    "rnn": (lambda x, w: _recurrent(x, w), [(2, 3, 4), (5, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", TWO_OPERANDS)
@pytest.mark.parametrize("gradients_of", [by_backward, by_grad])
def test_gradient_of_one_operand_alone_is_that_of_both(case, dtype, backend, gradients_of):
    """In a process of its own: Paddle's own kernels end it by a segmentation fault."""
    function, shapes = TWO_OPERANDS[case]

    def gradients(asked):
        paddle.seed(1)
        leaves = [paddle.randn(shape).astype(dtype).detach() for shape in shapes]
        for leaf, is_asked in zip(leaves, asked, strict=True):
            leaf.stop_gradient = not is_asked
        with half_cpu.dispatch(backend=backend):
            first, axes = leaves[0], [1, 0, 2, 3][: leaves[0].ndim]
            if first.ndim > 1:  # strided, which a kernel may decline
                first = first.transpose(axes).clone().transpose(axes)
            loss = function(first, leaves[1]).astype("float32").square().sum()
        return gradients_of(loss, leaves)

    child = os.fork()
    if child == 0:
        try:
            both, left, right = (gradients(asked) for asked in ((True, True), (True, False), (False, True)))
            np.testing.assert_array_equal(left[0], both[0])
            np.testing.assert_array_equal(right[1], both[1])
            os._exit(0 if left[1] is right[0] is None else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
