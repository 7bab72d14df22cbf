"""The optimizers' kernels: Paddle's bits, gradients multiplied as they are read, half weights written with the others.

Where Paddle has AVX-512 its adamw_ fuses the same multiplications and sums as the kernel does; elsewhere each step may
be one rounding of a sum off, and so may each of SGD, whose product Paddle fuses with the sum or not, by the processor
and the number of weights.
"""

import functools
from pathlib import Path

import numpy as np
import paddle
import pytest

from image_classification import half_cpu
from image_classification.amp.gradients import multiply, square_sums
from image_classification.half_cpu import compiled_library, compiled_optimizer
from tests.helpers.half_cpu_rounding import DTYPES, assert_rounded_once

pytestmark = pytest.mark.skipif(compiled_library.load() is None, reason="needs a C++ compiler and AVX2")

STEPS = 3
SHAPES = ([131, 130], [7], [1], [24, 16])  # more than one thread's share, less than a vector, whole vectors
L2 = paddle.regularizer.L2Decay(1e-3)
OPTIMIZERS = {
    "AdamW": lambda p: paddle.optimizer.AdamW(3e-3, parameters=p, weight_decay=0.05),
    "AdamW without decay": lambda p: paddle.optimizer.AdamW(
        3e-3, 0.8, 0.95, 1e-6, p, weight_decay=0.05, apply_decay_param_fun=lambda name: False
    ),
    "Adam": lambda p: paddle.optimizer.Adam(3e-3, parameters=p),
    "Momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p),
    "Momentum, decay": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, weight_decay=1e-3),
    "Nesterov, decay": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, use_nesterov=True, weight_decay=L2),
    "SGD": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
}
# Paddle's operators compute these, or something else reads the gradients first.
OTHERS = {
    "AdamW, amsgrad": lambda p: paddle.optimizer.AdamW(3e-3, parameters=p, amsgrad=True),
}
READ_FIRST = {
    "AdamW, clipped": lambda p: paddle.optimizer.AdamW(3e-3, parameters=p, grad_clip=paddle.nn.ClipGradByValue(1.0)),
    "Adam, decay": lambda p: paddle.optimizer.Adam(3e-3, parameters=p, weight_decay=1e-3),
    "SGD, decay": lambda p: paddle.optimizer.SGD(0.1, parameters=p, weight_decay=1e-3),
    "AdamW, groups": lambda p: paddle.optimizer.AdamW(3e-3, parameters=[{"params": p}]),
    "Momentum, all at once": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, use_multi_tensor=True),
    "RMSProp": lambda p: paddle.optimizer.RMSProp(3e-3, parameters=p),
}


def parameters(dtype):
    """Return parameters of a dtype; every call the same."""
    paddle.seed(0)
    params = []
    for shape in SHAPES:
        layer = paddle.nn.Layer()
        layer.add_parameter("weight", layer.create_parameter(shape))
        layer.weight.set_value(paddle.randn(shape))
        if dtype != "float32":
            layer.to(dtype=dtype)
        params.append(layer.weight)
    return params


def run(make, dtype, backend="auto", before=lambda params: None, factor=1.0, half_of=lambda tensor: None):
    """Return (parameters, optimizer, ids of written tensors) after a few steps on random gradients."""
    params = parameters(dtype)
    optimizer, rng = make(params), np.random.default_rng(0)
    written = set()
    for _ in range(STEPS):
        for param in params:
            param.grad = paddle.to_tensor(rng.standard_normal(param.shape).astype("float32")).astype(dtype)
        with half_cpu.dispatch(backend=backend):
            before(params)
            with half_cpu.update(factor, half_of) as ids:
                optimizer.step()
        written |= ids
    return params, optimizer, written


def arrays(params, optimizer):
    """Return weights and state as float32 arrays."""
    states = [state for states in optimizer._accumulators.values() for state in states.values()]
    return [tensor.astype("float32").numpy() for tensor in (*params, *states)]


def assert_same_bits(actual, expected, name):
    is_fused = " avx512f " in Path("/proc/cpuinfo").read_text() and name != "SGD"
    for one, other in zip(actual, expected, strict=True):
        bound = 0 if is_fused else 1e-6 * STEPS  # a small weight may be the difference of a large one and its step
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound * np.abs(other).max())


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
@pytest.mark.parametrize("name", OPTIMIZERS | OTHERS)
def test_step_of_a_kernel_is_paddles_step_bit_for_bit(name, dtype):
    make = (OPTIMIZERS | OTHERS)[name]
    expected = arrays(*run(make, dtype, "reference")[:2])
    assert np.abs(expected[0] - parameters(dtype)[0].astype("float32").numpy()).max() > 1e-3
    assert_same_bits(arrays(*run(make, dtype)[:2]), expected, name)


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
@pytest.mark.parametrize("name", OPTIMIZERS | OTHERS)
def test_gradients_multiplied_as_they_are_read_give_the_same_bits(name, dtype):
    make, factor = (OPTIMIZERS | OTHERS)[name], 0.3 / 1024

    def before(params):
        with paddle.no_grad():
            multiply([param.grad for param in params], factor)

    expected = arrays(*run(make, dtype, "reference", before)[:2])
    assert_same_bits(arrays(*run(make, dtype, factor=factor)[:2]), expected, name)


@pytest.mark.parametrize("factor", [1.0, 0.3 / 1024])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS | OTHERS)
def test_half_gradients_of_float32_weights_are_widened_as_they_are_read(name, dtype, factor):
    """And multiplied in float32: rounded to half, a thousandth of them would be other numbers."""
    weights = []
    for widened in (True, False):
        params = parameters("float32")
        optimizer, rng = (OPTIMIZERS | OTHERS)[name](params), np.random.default_rng(0)
        halves = [paddle.zeros(shape, dtype) for shape in SHAPES]
        halves[1] = paddle.zeros([14], dtype).reshape([7, 2])[:, 0]  # strided: the kernel writes none
        half_of = {param.name: half for param, half in zip(params, halves, strict=True)}
        for _ in range(STEPS):
            gradients = [paddle.to_tensor(rng.standard_normal(p.shape).astype("float32")).astype(dtype) for p in params]
            if widened:
                gradients = [gradient.astype("float32") for gradient in gradients]
            given = {id(param): gradient for param, gradient in zip(params, gradients, strict=True)}
            with half_cpu.dispatch(), half_cpu.update(factor, lambda w, of=half_of: of[w.name], True) as written:
                for param in params:  # the operator's call, of a gradient that Paddle's tensor would not hold
                    param.grad = paddle.zeros_like(param)
                    param._grad_ivar = functools.partial(given.get, id(param))
                optimizer.step()
            assert written == {id(half) for half in halves if half is not halves[1]} or name in OTHERS
        weights.append(arrays([*params, *halves], optimizer))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_half_weights_are_written_with_the_ones_that_they_follow(name, dtype):
    halves = [paddle.zeros(shape, dtype) for shape in SHAPES]
    # the second one is strided: left to whoever publishes the masters
    halves[1] = paddle.zeros([14], dtype).reshape([7, 2])[:, 0]
    place = {}

    def half_of(tensor):
        return halves[SHAPES.index(tensor.shape)]

    def before(params):
        place.update({id(half): half.inplace_version for half in halves})

    params, _, written = run(OPTIMIZERS[name], "float32", before=before, half_of=half_of)
    assert written == {id(half) for half in halves if half is not halves[1]}
    for half, param in zip(halves, params, strict=True):
        if id(half) in written:
            assert_rounded_once(half, param, dtype, name)
            assert half.inplace_version > place[id(half)]


@pytest.mark.parametrize("name", OPTIMIZERS | READ_FIRST)
def test_gradients_are_multiplied_by_kernels_only_where_nothing_else_reads_them(name):
    optimizer = (OPTIMIZERS | READ_FIRST)[name](parameters("float32"))
    assert not half_cpu.multiplies_gradients(optimizer)
    with half_cpu.dispatch(backend="reference"):
        assert not half_cpu.multiplies_gradients(optimizer)
    with half_cpu.dispatch():
        assert half_cpu.multiplies_gradients(optimizer) == (name in OPTIMIZERS)


def test_optimizer_of_ones_own_reads_gradients_as_it_likes():
    class Own(paddle.optimizer.AdamW):
        pass

    with half_cpu.dispatch():
        assert not half_cpu.multiplies_gradients(Own(parameters=parameters("float32")))


def test_regularizer_of_a_parameter_reads_its_gradient_first():
    params = parameters("float32")
    optimizers = [kind(0.1, parameters=params) for kind in (paddle.optimizer.SGD, paddle.optimizer.Momentum)]
    params[1].regularizer = L2
    with half_cpu.dispatch():
        # Momentum's operator adds the decay itself
        assert [half_cpu.multiplies_gradients(optimizer) for optimizer in optimizers] == [False, True]


def test_small_float32_weights_with_nothing_else_to_do_are_left_to_paddle():
    small, large, half = paddle.zeros([8]), paddle.zeros([1 << 17]), paddle.zeros([8], "bfloat16")
    for rule in compiled_optimizer.left().values():

        def is_left(weights, rule=rule, dtype=None):
            gradient = weights.astype(dtype or weights.dtype)
            return rule(lambda *tensors: True, (weights, gradient, gradient), {}) is True

        assert [is_left(weights) for weights in (small, large, half)] == [True, False, False]
        assert not is_left(small, dtype="bfloat16")
        with half_cpu.update(0.5, lambda tensor: None):
            assert not is_left(small)
        with half_cpu.update(1.0, lambda tensor: half):
            assert not is_left(small)


def test_sparse_gradients_are_left_to_paddle():
    tables = []
    for backend in ("reference", "auto"):
        paddle.seed(0)
        layer = paddle.nn.Embedding(10, 4, sparse=True)
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        layer(paddle.to_tensor([1, 2, 1])).sum().backward()
        with half_cpu.dispatch(backend=backend):
            optimizer.step()
        tables.append(layer.weight.numpy())
    np.testing.assert_array_equal(*tables)


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_square_sums_are_those_of_numpy(dtype):
    tensors = [tensor.detach() for tensor in parameters(dtype)]
    with half_cpu.dispatch():
        sums = square_sums(tensors)
    expected = [(tensor.astype("float64").numpy() ** 2).sum() for tensor in tensors]
    # Of 17030 squares a lane of AVX2 adds up 1024 in float32: a walk of so many roundings of 2^-24.
    np.testing.assert_allclose(sums.numpy(), expected, rtol=2e-6)
