"""The compiled kernels' numbers where blocks, memory orders, threads and bits matter."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification.half_cpu import compiled, compiled_library, compiler
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Layout, dense_strides
from tests.helpers.half_cpu_rounding import DTYPES, round_half, widen

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {"float16": onednn.FLOAT16, "bfloat16": onednn.BFLOAT16, "float32": onednn.FLOAT32}

needs_library = pytest.mark.skipif(compiled_library.load() is None, reason="needs a C++ compiler and AVX2")


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversion_of_every_pattern_and_back_is_exact(dtype):
    patterns = np.arange(2**16, dtype=np.uint16)
    wide, back = np.zeros(2**16, np.float32), np.zeros(2**16, np.uint16)
    library = compiled_library.load()
    library.convert(FORMATS[dtype], onednn.FLOAT32, 2**16, patterns.ctypes.data, wide.ctypes.data)
    library.convert(onednn.FLOAT32, FORMATS[dtype], 2**16, wide.ctypes.data, back.ctypes.data)
    expected = widen(patterns, dtype)
    np.testing.assert_array_equal(wide, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(back[number], patterns[number])  # subnormals and both zeros among them
    assert np.isnan(widen(back, dtype)[~number]).all()


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversion_rounds_once_to_nearest_even(dtype):
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 100_001, dtype=np.uint32)  # every exponent, and a tail shorter than a vector
    ties = widen(np.arange(2**16, dtype=np.uint16), dtype)
    ties = ties[np.isfinite(ties)]
    middles = ((ties[:-1].astype(np.float64) + ties[1:]) / 2).astype(np.float32)
    special = np.array([65519.99, 65520, 2.0**-25, 2.0**-24 * 1.5, -0.0], np.float32)
    values = np.concatenate([bits.view(np.float32), middles, special])
    result = np.zeros(len(values), np.uint16)
    compiled_library.load().convert(
        onednn.FLOAT32, FORMATS[dtype], len(values), values.ctypes.data, result.ctypes.data
    )
    number = ~np.isnan(values)
    np.testing.assert_array_equal(result[number], round_half(values, dtype)[number])


def tail_of_normal(x):
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])


def slope_of_gelu(x):
    return tail_of_normal(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# Each with its numbers, and what its own error may be beside a rounding: of the result, and for GELU of its factor.
FUNCTIONS = {
    "exp": ((0, 0), np.exp, 4e-6),
    "sigmoid": ((0, 0), lambda x: 1 / (1 + np.exp(-x)), 4e-6),
    "silu": ((0, 0), lambda x: x / (1 + np.exp(-x)), 4e-6),
    "tanh": ((0, 0), np.tanh, 4e-6),
    "elu": ((0.7, 0), lambda x: np.where(x < 0, 0.7 * np.expm1(x), x), 4e-6),
    "celu": ((0.7, 0), lambda x: np.where(x < 0, 0.7 * np.expm1(x / 0.7), x), 4e-6),
    "selu": ((1.1, 1.7), lambda x: 1.1 * np.where(x < 0, 1.7 * np.expm1(x), x), 4e-6),
    "softplus": ((1, 20), lambda x: np.logaddexp(0, x), 4e-6),
    "logsigmoid": ((0, 0), lambda x: -np.logaddexp(0, -x), 4e-6),
    "mish": ((0, 0), lambda x: x * np.tanh(np.logaddexp(0, x)), 4e-6),
    "log": ((0, 0), np.log, 4e-6),
    "sin": ((0, 0), np.sin, 4e-6),
    "cos": ((0, 0), np.cos, 4e-6),
    "gelu": ((0, 0), lambda x: x * tail_of_normal(x), 2**-22),
}


def steps(numbers, dtype):
    """Return the distance of a half format's neighbours at each number."""
    bits, smallest = (10, -14) if dtype == "float16" else (7, -126)
    return 2.0 ** (np.maximum(np.frexp(numbers)[1] - 1, smallest) - bits)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_half_number_are_float64s_rounded_once(name, dtype):
    """Subnormal results of bfloat16 may be 0 (the sigmoid's are, and what comes from it)."""
    constants, function, error = FUNCTIONS[name]
    patterns = np.arange(2**16, dtype=np.uint16)
    result = np.zeros(2**16, np.uint16)
    compiled_library.load().activation(
        name.encode(), FORMATS[dtype], 2**16, *constants, patterns.ctypes.data, result.ctypes.data
    )
    with np.errstate(all="ignore"):
        x, result = widen(patterns, dtype).astype(np.float64), widen(result, dtype).astype(np.float64)
        exact = function(x)
    number = np.isfinite(x) & (np.abs(exact) < np.finfo(np.float16 if dtype == "float16" else np.float32).max)
    x, result, exact = x[number], result[number], exact[number]
    flushed = 2.0**-126 * np.maximum(1, np.abs(x)) if dtype == "bfloat16" else 0
    factor = 1e-6 if name == "gelu" else 0
    assert (np.abs(result - exact) <= steps(exact, dtype) / 2 + error * np.abs(exact) + flushed + factor).all()


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_slope_of_gelu_at_every_half_number_is_within_a_millionth_of_float64(dtype):
    patterns = np.arange(2**16, dtype=np.uint16)
    x = widen(patterns, dtype)
    x = np.where(np.isfinite(x) & (np.abs(x) < 1e30), x, 0).astype(np.float64)
    kept, ones = round_half(x.astype(np.float32), dtype), np.full(2**16, round_half(np.float32([1]), dtype)[0])
    slopes, exact = np.zeros(2**16, np.uint16), slope_of_gelu(x)
    compiled_library.load().activation_backward(
        b"gelu", FORMATS[dtype], 2**16, 0, 0, kept.ctypes.data, ones.ctypes.data, slopes.ctypes.data
    )
    assert (np.abs(widen(slopes, dtype) - exact) <= steps(exact, dtype) / 2 + 1e-6).all()


@needs_library
def test_exponential_of_every_size_is_float64s_down_to_denormal_numbers():
    ends = np.float32([-np.inf, -3e38, -200, -105.5, 0, 89.5, 3e38, np.inf, np.nan])
    values = np.concatenate([ends, np.linspace(-104, 88.7, 20_000, dtype=np.float32)])
    result = np.zeros_like(values)
    constants = b"exp", FORMATS["float32"], values.size, 0, 0
    compiled_library.load().activation(*constants, values.ctypes.data, result.ctypes.data)
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(values.astype(np.float64))
    np.testing.assert_array_equal(result[: len(ends)], exact[: len(ends)].astype(np.float32))
    # Two units in the last place, or of the smallest number.
    np.testing.assert_allclose(result[len(ends) :], exact[len(ends) :], rtol=2.0**-22, atol=2 * 2.0**-149)


@needs_library
def test_sigmoid_of_every_size_is_float64s_and_0_below_the_smallest_normal_number():
    ends = np.float32([-np.inf, -3e38, -200, -87.5, 0, 200, 3e38, np.inf, np.nan])
    payloads = np.uint32([0x7F800001, 0x7FC00001, 0xFFC12345]).view(np.float32)  # of NaN, too
    values = np.concatenate([ends, payloads, np.linspace(-86.9, 86.9, 40_000, dtype=np.float32)])
    result = np.zeros_like(values)
    constants = b"sigmoid", FORMATS["float32"], values.size, 0, 0
    compiled_library.load().activation(*constants, values.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result[: len(ends)], np.float32([0, 0, 0, 0, 0.5, 1, 1, 1, np.nan]))
    assert np.isnan(result[len(ends) :][: len(payloads)]).all()
    rest = slice(len(ends) + len(payloads), None)
    np.testing.assert_allclose(result[rest], 1 / (1 + np.exp(-values[rest].astype(np.float64))), rtol=2.0**-21)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_of_half_formats_of_inf_and_nan_is_that_of_float32(dtype):
    patterns = np.arange(2**16, dtype=np.uint16)
    numbers = np.isfinite(widen(patterns, dtype))
    ones = np.full(2**16, round_half(np.float32([1]), dtype)[0])
    result, gradient = np.zeros(2**16, np.uint16), np.zeros(2**16, np.uint16)
    constants = b"gelu", FORMATS[dtype], 2**16, 0, 0
    compiled_library.load().activation(*constants, patterns.ctypes.data, result.ctypes.data)
    compiled_library.load().activation_backward(
        *constants, patterns.ctypes.data, ones.ctypes.data, gradient.ctypes.data
    )
    np.testing.assert_array_equal(np.isfinite(widen(result, dtype)), numbers)
    ends = np.isinf(widen(patterns, dtype))
    of_ends = paddle.nn.functional.gelu(paddle.to_tensor(widen(patterns, dtype)[ends])).numpy()  # inf and NaN
    np.testing.assert_array_equal(widen(result, dtype)[ends], of_ends)
    is_nan = np.isnan(widen(patterns, dtype))
    np.testing.assert_array_equal(np.isnan(widen(gradient, dtype)), is_nan)  # the slope at either end is a number


ORDERS = [
    ((2, 40, 9, 7), (0, 1, 2, 3), (0, 2, 3, 1)),  # images to channels last
    ((2, 40, 9, 7), (0, 2, 3, 1), (0, 1, 2, 3)),
    ((35, 17, 3, 3), (0, 1, 2, 3), (2, 3, 1, 0)),  # filters
    ((2, 3, 4, 5, 7), (0, 1, 2, 3, 4), (0, 3, 2, 1, 4)),  # windows
    ((2, 35, 2, 2, 5, 7), (0, 4, 5, 1, 2, 3), (0, 4, 2, 5, 3, 1)),  # pixels of channels that lie side by side, and back
    ((2, 35, 2, 2, 5, 7), (0, 4, 2, 5, 3, 1), (0, 4, 5, 1, 2, 3)),
    ((70, 50), (0, 1), (1, 0)),
    ((1, 1), (0, 1), (1, 0)),
    ((5, 1, 6), (0, 1, 2), (2, 1, 0)),
]


@needs_library
@pytest.mark.parametrize(("shape", "source", "target"), ORDERS)
@pytest.mark.parametrize(("data_type", "bits"), [(onednn.FLOAT16, np.uint16), (onednn.FLOAT32, np.uint32)])
def test_copy_to_another_memory_order_moves_every_bit(shape, source, target, data_type, bits):
    generator = np.random.default_rng(0)
    values = generator.integers(0, np.iinfo(bits).max, shape, dtype=bits, endpoint=True)
    memory = np.ascontiguousarray(values.transpose(source))
    result = np.zeros([shape[axis] for axis in target], bits)
    layouts = [Layout(data_type, shape, strides_of(shape, order)) for order in (source, target)]
    compiled.reorder(*layouts)(memory.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, values.transpose(target))


def strides_of(shape, order):
    dense = dense_strides([shape[axis] for axis in order])
    return tuple(dense[order.index(axis)] for axis in range(len(shape)))


# M, N, K: odd, shorter than every block, and longer than what is packed at a time (1 << 20 floats of the right factor)
SIZES = [(1, 1, 1), (15, 33, 17), (40, 31, 800), (3, 2100, 1000), (200, 70, 385), (29, 1, 5000)]
FEW_COLUMNS = [(150, 70, 64), (101, 16, 384), (97, 260, 5), (60, 5, 0)]  # of several blocks of rows; of no terms
FEW_ROWS = [(1, 130, 131), (2, 517, 1037), (3, 999, 66), (4, 1, 20001), (7, 260, 260), (9, 130, 131), (16, 999, 66),
            (17, 260, 260)]  # fmt: skip


@needs_library
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", SIZES + FEW_ROWS + FEW_COLUMNS)
def test_product_of_any_size_equals_numpy(size, dtype, transposed):
    M, N, K = size
    left, right = draw((M, K), dtype, 0), draw((K, N), dtype, 1)
    result = multiply(left, right, dtype, transposed)
    expected = left.astype(np.float64) @ right
    # One rounding, and a float32 sum of K terms: their random errors grow as the square root of K.
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23}[dtype]
    bound = rounding * np.abs(expected) + 2.0**-23 * math.sqrt(K) * np.abs(left) @ np.abs(right) + 2.0**-24
    assert (np.abs(result - expected) <= bound).all()


@needs_library
@pytest.mark.parametrize("ending", ["bias", "addend", "scale", "gelu"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", [FEW_COLUMNS[0], FEW_ROWS[2], SIZES[4]])
def test_what_follows_a_product_comes_before_its_rounding(size, dtype, ending):
    M, N, K = size
    left, right, bias, addend = (draw(shape, dtype, 2) for shape in ((M, K), (K, N), (1, N), (M, N)))
    exact = left.astype(np.float64) @ right
    expected, operand, post_ops = {
        "bias": (exact + bias, bias, ()),
        "addend": (exact + addend, addend, (("binary", onednn.BINARY_ADD, layout_of(addend, dtype)),)),
        "scale": (0.3 * exact, None, (("eltwise", onednn.LINEAR, 0.3, 0.0),)),
        "gelu": (F.gelu(paddle.to_tensor(exact)).numpy(), None, (("eltwise", onednn.GELU_ERF, 0.0, 0.0),)),
    }[ending]
    result = multiply(left, right, dtype, (False, False), operand, post_ops)
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}[dtype]
    bound = rounding * np.abs(expected) + 2.0**-22 * math.sqrt(K) * np.abs(left) @ np.abs(right) + 2.0**-22
    assert (np.abs(result - expected) <= bound).all()


@needs_library
@pytest.mark.parametrize("transposed", [(False, False), (False, True)])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", FEW_ROWS)
def test_product_of_few_rows_has_what_is_not_finite_in_its_own_columns(size, dtype, transposed):
    M, N, K = size
    left, right = draw((M, K), dtype, 0), draw((K, N), dtype, 1)
    left[:, -1] = 0.5
    right[-1, 0], right[0, N // 2] = np.inf, np.nan
    expected = left.astype(np.float64) @ right
    result = multiply(left, right, dtype, transposed)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    assert np.isfinite(result[finite]).all()


@needs_library
@pytest.mark.parametrize("dtype", FORMATS)
def test_products_of_a_batch_have_the_bits_of_each_alone(dtype):
    """More of them than the cache keeps, one of which has inf and NaN in rows of their own."""
    left, right = draw((37, 30, 250), dtype, 0), draw((37, 250, 70), dtype, 1)
    left[17, 3, 5], left[17, 4, 6] = np.inf, np.nan
    out = in_memory(np.zeros((37, 30, 70)), dtype)
    layouts = [layout_of(values, dtype, (0, 1, 2)) for values in (left, right, out)]
    memory = [in_memory(values, dtype) for values in (left, right)]
    compiled.matmul(layouts[0], layouts[1], None, layouts[2], ())(*(one.ctypes.data for one in (*memory, out)))
    found = out if dtype == "float32" else widen(out, dtype)
    alone = [multiply(*factors, dtype) for factors in zip(left, right, strict=True)]
    np.testing.assert_array_equal(found.astype(np.float64), np.stack(alone))
    finite = np.isfinite(found)
    assert not finite[17, 3:5].any() and finite.sum() == finite.size - 2 * 70


def draw(shape, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values if dtype == "float32" else widen(round_half(values, dtype), dtype)


def multiply(left, right, dtype, transposed=(False, False), operand=None, post_ops=()):
    """Return the product by the compiled kernel, float64; a transposed factor lies in memory column by column."""
    out = np.zeros((len(left), right.shape[1]))
    layouts, memory = [], []
    for values, columns in ((left, transposed[0]), (right, transposed[1]), (out, False)):
        layouts.append(layout_of(values, dtype, (1, 0) if columns else (0, 1)))
        memory.append(in_memory(values.T if columns else values, dtype))
    bias = layout_of(operand, dtype) if operand is not None and not post_ops else None
    others = [] if operand is None else [in_memory(operand, dtype)]
    call = compiled.matmul(layouts[0], layouts[1], bias, layouts[2], post_ops)
    call(*(one.ctypes.data for one in (*memory, *others)))
    result = memory[2] if dtype == "float32" else widen(memory[2], dtype)
    return result.astype(np.float64)


def layout_of(values, dtype, order=(0, 1)):
    return Layout(FORMATS[dtype], values.shape, strides_of(values.shape, order))


def in_memory(values, dtype):
    values = np.ascontiguousarray(values.astype(np.float32))
    return values if dtype == "float32" else round_half(values, dtype)


THREADS = """
import sys
sys.path.insert(0, {root!r})
import numpy as np, paddle
import paddle.nn.functional as F
from image_classification import half_cpu, layers
paddle.seed(0)
x, w = paddle.randn([2, 24, 17, 15]), paddle.randn([40, 24, 3, 3])
s, b = paddle.randn([40]), paddle.randn([40])
inputs = [tensor.astype("float16") for tensor in (x, w, s, b)]
for tensor in inputs:
    tensor.stop_gradient = False
x, w, s, b = inputs
with half_cpu.dispatch():
    y = F.conv2d(x, w, padding=1)
    y = F.relu(F.batch_norm(y, paddle.zeros([40]), paddle.ones([40]), s.astype("float32"), b.astype("float32"), True))
    y = F.max_pool2d(y, 3, 2, 1).transpose([0, 2, 3, 1])
    y = F.softmax(paddle.matmul(F.gelu(y), w.flatten(1)[:, :40]))
    y = F.layer_norm(y, 40, s, b)
qkv, bias = (paddle.randn(shape).astype("float16") for shape in ([18, 21, 3 * 24], [3, 2, 21, 21]))
qkv.stop_gradient = bias.stop_gradient = False
with half_cpu.dispatch():
    z = layers.attention(qkv, 2, 0.3, None, bias)
y.backward(paddle.linspace(-1, 1, y.size).reshape(y.shape).astype("float16"))
z.backward(paddle.linspace(-1, 1, z.size).reshape(z.shape).astype("float16"))
tensors = [y, z, *(tensor.grad for tensor in (*inputs, qkv, bias))]
np.savez({path!r}, *(tensor.numpy() for tensor in tensors))
print(half_cpu.backend_name("float16"))
"""


@needs_library
def test_results_do_not_depend_on_the_number_of_threads(tmp_path):
    """Also of more than have shares of their own, and of fewer than shares were made for."""
    results = []
    for threads, limit in (("1", "1"), ("70", "70"), ("3", "2")):
        path = str(tmp_path / f"{threads}-{limit}.npz")
        program = THREADS.format(root=str(ROOT), path=path)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OMP_THREAD_LIMIT": limit}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("compiled")
        results.append(np.load(path))
    for name in results[0].files:
        for others in results[1:]:
            np.testing.assert_array_equal(results[0][name], others[name])
        assert np.isfinite(results[0][name]).all() and results[0][name].any()


@pytest.mark.slow
@needs_library
def test_kernels_compiled_for_avx2_pass_the_same_tests(tmp_path):
    """The processor here may have more; the compiler is told to use AVX2 only."""
    wrapper = tmp_path / "c++"
    wrapper.write_text(f'#!/bin/sh\nexec "{compiler.find()[0]}" "$@" -march=x86-64-v3\n')
    wrapper.chmod(0o755)
    environment = os.environ | {"CXX": str(wrapper), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["ONEDNN_MAX_CPU_ISA"] = "AVX2"
    files = [str(ROOT / "tests" / name) for name in ("half_cpu", "amp", "test_models.py")]
    probe = "from image_classification import half_cpu; print(half_cpu.backend_name('float16'))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "compiled avx2", done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


@needs_library
def test_conversion_of_paddle_tensors_equals_paddle(dtype="float16"):
    x = paddle.randn([1000]) * 1e5
    result = paddle.empty([1000], dtype)
    compiled_library.load().convert(onednn.FLOAT32, FORMATS[dtype], 1000, x.data_ptr(), result.data_ptr())
    np.testing.assert_array_equal(result.numpy(), x.astype(dtype).numpy())
