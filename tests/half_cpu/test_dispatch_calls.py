"""half_cpu.dispatch: who serves a call, which calls are refused, and what runs again in the backward pass."""

import pickle

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute

from image_classification import half_cpu
from image_classification.half_cpu import kernels, op_names, reference
from tests.helpers.policies import Policy

# Backends and kernels


@pytest.fixture
def doubling(monkeypatch):
    """A backend whose relu makes everything 7 but float16 tensors, which it passes on."""

    def relu(original, args, kwargs):
        calls.append([tensor.dtype for tensor in args])
        return NotImplemented if args[0].dtype == paddle.float16 else paddle.full_like(args[0], 7.0)

    calls = []
    backend = kernels.Backend("doubling", {"bfloat16": "doubling avx"}, {"relu": relu})
    monkeypatch.setattr(kernels, "_BACKENDS", dict(kernels._BACKENDS))
    kernels.register("doubling", lambda: backend)
    return calls


def test_kernel_of_a_backend_is_asked_first_and_may_decline(doubling):
    with half_cpu.dispatch(backend="doubling"):
        assert F.relu(paddle.ones([1]).astype("bfloat16")).astype("float32").item() == 7
        assert F.relu(paddle.ones([1]).astype("float16")).item() == 1
        assert F.relu(paddle.ones([1])).item() == 1
    with half_cpu.dispatch(backend="reference"):
        assert F.relu(paddle.ones([1]).astype("bfloat16")).astype("float32").item() == 1
    assert doubling == [[paddle.bfloat16], [paddle.float16]]


def test_kernel_sees_inputs_after_the_policy_cast(doubling):
    with half_cpu.dispatch(Policy("bfloat16"), backend="doubling"):
        assert F.relu(paddle.ones([1])).dtype == paddle.bfloat16
    assert doubling == [[paddle.bfloat16]]


def test_backend_name_tells_what_computes_a_dtype(doubling):
    assert half_cpu.backend_name("float16", "reference") == "reference"
    assert half_cpu.backend_name("bfloat16") == "doubling avx"
    assert half_cpu.backend_name("float16") == "reference"


def test_unknown_backend_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="cuda.*reference"):
        half_cpu.dispatch(backend="cuda")


# Operators that cannot be served


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operator_without_float32_kernel_is_named_with_the_dtype(dtype):
    x = paddle.ones([2]).astype(dtype)
    with half_cpu.dispatch():
        with pytest.raises(half_cpu.UnsupportedOperator, match=f"'bitwise_and' cannot compute {dtype}") as caught:
            x & x
    assert (caught.value.name, caught.value.dtype) == ("bitwise_and", dtype)


def test_custom_operator_on_half_tensors_is_refused_by_its_own_name():
    x = paddle.ones([2]).astype("bfloat16")
    with half_cpu.dispatch():
        with pytest.raises(half_cpu.UnsupportedOperator, match="'somebodys_relu' cannot compute bfloat16.*custom"):
            paddle._C_ops._run_custom_op("somebodys_relu", x)


@pytest.mark.parametrize("table", [paddle._C_ops, paddle._legacy_C_ops], ids=["present", "legacy"])
def test_static_program_on_half_tensors_is_refused(table):
    """A program loaded from a file, for instance: its operators would run on half kernels that are not exact."""
    with half_cpu.dispatch():
        with pytest.raises(half_cpu.UnsupportedOperator, match="'run_program' cannot compute float16.*dynamic mode"):
            table.run_program([paddle.ones([1, 2]).astype("float16")])


def test_layer_made_static_with_half_weights_is_refused_as_paddle_makes_errors_anew():
    """Paddle, as pickle, makes one of its class from the text alone."""
    layer = paddle.jit.to_static(nn.Linear(4, 4).to(dtype="bfloat16"), full_graph=True)
    with half_cpu.dispatch():
        with pytest.raises(half_cpu.UnsupportedOperator, match="'run_program' cannot compute bfloat16.*dynamic mode"):
            layer(paddle.ones([2, 4]).astype("bfloat16"))
        parts = paddle.jit.to_static(nn.Linear(4, 4).to(dtype="bfloat16"))  # which Paddle takes operator by operator
        assert parts(paddle.ones([2, 4]).astype("bfloat16")).dtype is paddle.bfloat16
    error = pickle.loads(pickle.dumps(half_cpu.UnsupportedOperator("matmul", "float16", "it is none")))
    assert str(error) == "operator 'matmul' cannot compute float16 on a CPU: it is none" and error.name == "matmul"


def test_program_that_is_exported_inside_of_a_dispatch_is_that_of_the_layer(tmp_path, caplog):
    reference._tell_of_program.cache_clear()
    layers = nn.Conv2D(1, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.Hardswish()
    layer, images = nn.Sequential(*layers), paddle.rand([2, 1, 4, 4])
    layer.eval()
    expected = layer(images).numpy()
    with half_cpu.dispatch(policy=Policy("float32")):
        spec = [paddle.static.InputSpec([None, 1, 4, 4], "float32")]
        paddle.jit.save(paddle.jit.to_static(layer, input_spec=spec, full_graph=True), str(tmp_path / "net"))
        loaded = paddle.jit.load(str(tmp_path / "net"))
        for _ in range(2):
            np.testing.assert_allclose(loaded(images).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert caplog.text.count("nothing is cast and no kernel is used") == 1


# What runs again


class Triple(PyLayer):
    """A Python layer whose backward pass is arithmetic on half tensors."""

    @staticmethod
    def forward(ctx, x):
        return x * 3.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3.0


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("policy", [None, Policy("bfloat16")], ids=["half", "policy"])
@pytest.mark.parametrize("form", ["layer", "function"])
def test_recomputed_layers_run_in_the_backward_pass_as_they_did_before(form, policy, reentrant):
    gradients, formats = [], []
    for recomputed in (False, True):
        paddle.seed(0)
        block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8))
        block = block.to(dtype="bfloat16") if policy is None else block
        block[3].register_forward_post_hook(lambda layer, args, result: formats.append(result.dtype))
        x = paddle.randn([4, 8]).astype(block[0].weight.dtype)
        x.stop_gradient = False
        with half_cpu.dispatch(policy):
            run = block if form == "layer" else lambda x, block=block: block(x)
            result = recompute(run, x, use_reentrant=reentrant) if recomputed else block(x)
        result.astype("float32").sum().backward()
        gradients.append([tensor.grad.astype("float32").numpy() for tensor in (x, *block.parameters())])
    assert formats == [paddle.bfloat16] * 3
    for expected, found in zip(*gradients, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_python_layers_run_backward_inside_the_context(dtype):
    x = paddle.ones([2]).astype(dtype)
    x.stop_gradient = False
    with half_cpu.dispatch():
        y = recompute(lambda x: F.gelu(Triple.apply(x)), x)
        y.backward()
    assert x.grad.dtype == x.dtype
    np.testing.assert_allclose(x.grad.astype("float32").numpy(), 3.0 * 1.0119, rtol=0.01)


# Numbers and other tensors

NUMBERS = {
    "float": 0.3, "int": 3, "zero": 0, "minus zero": -0.0, "bool": True,
    "float64": np.float64(0.3), "float32": np.float32(0.3), "int64": np.int64(3), "array": np.full([5], 0.3, "float32"),
}  # fmt: skip


def outcome(function, *args):
    try:
        result = function(*args)
    except Exception as error:
        return type(error)
    return result.dtype, result.astype("float32").numpy().tobytes()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("method", op_names.ARITHMETIC_METHODS)
def test_method_with_a_number_under_dispatch_gives_what_paddle_gives(method, number):
    x, function = paddle.linspace(-2, 2, 5), getattr(paddle.Tensor, method, None)
    if function is None:
        pytest.skip(f"this Paddle has no Tensor.{method}")
    expected = outcome(function, x, NUMBERS[number])
    with half_cpu.dispatch():
        assert outcome(getattr(paddle.Tensor, method), x, NUMBERS[number]) == expected


@pytest.mark.parametrize("name", ["square", "sqrt", "abs", "tanh", "relu", "sum", "add"])
def test_sparse_tensor_is_paddles_own(name):
    """Where a dense tensor has its numbers, a kernel would find none."""
    x = paddle.randn([64, 64, 64]).abs().to_sparse_coo(2)

    def compute():
        if name == "add":
            return paddle.sparse.add(x, x)
        return paddle.sparse.nn.functional.relu(x) if name == "relu" else getattr(paddle.sparse, name)(x)

    with half_cpu.dispatch():
        found = compute()
    found, expected = (each.to_dense() if each.is_sparse() else each for each in (found, compute()))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
