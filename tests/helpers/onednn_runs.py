"""Runs of one operator by the oneDNN kernels and by the reference, and how far apart their results may be."""

import ctypes
import threading
from pathlib import Path

import numpy as np
import paddle
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import onednn

FLOAT16, BFLOAT16, FLOAT32 = "float16", "bfloat16", "float32"
HALVES = [dtype for dtype in (FLOAT16, BFLOAT16) if half_cpu.backend_name(dtype) != "reference"]
ALL = [*HALVES, FLOAT32]
ROUNDING = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}  # the distance of neighbours, relative to the smaller one
needs_onednn = pytest.mark.skipif(
    not onednn.available(), reason="needs an x86-64 processor with AVX2 and a wheel with oneDNN"
)
needs_bfloat16_of_onednn = pytest.mark.skipif(
    onednn.instruction_set() is None, reason="needs a CPU whose bfloat16 oneDNN multiplies fast and a wheel with oneDNN"
)
OF_ONEDNN = [pytest.param(BFLOAT16, marks=needs_bfloat16_of_onednn), FLOAT32]  # what oneDNN multiplies


class Calls:
    """Counts the calls that a kernel served, so that no test compares the reference with itself."""

    def __init__(self, monkeypatch, *names):
        self.served = 0
        fast = half_cpu.kernels.find("onednn")
        table = dict(fast.kernels)
        for name in names:
            table[name] = self._counted(table[name])
        backend = half_cpu.kernels.Backend("counted", dict.fromkeys(HALVES, "counted"), table, fast.float32_kernels)
        monkeypatch.setitem(half_cpu.kernels._BACKENDS, "counted", lambda: backend)

    def _counted(self, kernel):
        def counted(original, args, kwargs):
            result = kernel(original, args, kwargs)
            self.served += result is not NotImplemented
            return result

        return counted


def tensors(shapes, dtype=BFLOAT16, seed=0, scale=1.0):
    """Return random leaf tensors that require gradients."""
    generator = np.random.default_rng(seed)
    values = [(generator.standard_normal(shape) * scale).astype("float32") for shape in shapes]
    result = [paddle.to_tensor(value).astype(dtype) for value in values]
    for tensor in result:
        tensor.stop_gradient = False
    return result


def by_threads(counts, compute):
    """Return what `compute()` gives by each of these numbers of threads."""
    openmp = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libiomp5.so"))
    threads, results = openmp.omp_get_max_threads(), []
    try:
        for count in counts:
            openmp.omp_set_num_threads(count)
            results.append(compute())
    finally:
        openmp.omp_set_num_threads(threads)
    return results


def in_threads(work, arguments):
    """Call `work(argument)` for all arguments at once, each in a thread of its own, to the end of all."""
    threads = [threading.Thread(target=work, args=[argument]) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def statistics(channels):
    """Return a running mean and variance that no batch has."""
    return paddle.linspace(-0.5, 0.5, channels), paddle.linspace(0.5, 2.0, channels)


def run(function, inputs, backend):
    """Return (result, gradients of the inputs) with a fixed random gradient of the result."""
    for tensor in inputs:
        tensor.clear_gradient(False)
    with half_cpu.dispatch(backend=backend):
        result = function(*inputs)
    seed = paddle.to_tensor(np.random.default_rng(1).standard_normal(result.shape).astype("float32"))
    paddle.autograd.backward([result], [seed.astype(result.dtype)])
    gradients = [tensor.grad for tensor in inputs]
    return result, [None if gradient is None else gradient.clone() for gradient in gradients]


def assert_within_one_rounding(actual, expected, intermediates=0):
    """Both were summed in float32, in another order, and rounded once: neighbours at most.

    Where a sum cancels, its float32 error counts relative to the summands: 2^-16 of the largest value. Each rounded
    intermediate (probabilities in a backward pass) is allowed one more rounding of the largest value.
    """
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    rounding = ROUNDING[str(expected.dtype).removeprefix("paddle.")]
    actual, expected = actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy()
    largest = np.abs(expected).max()
    bound = rounding * np.abs(expected) + max(intermediates * rounding, 2.0**-16) * largest
    assert (np.abs(actual - expected) <= bound).all(), (np.abs(actual - expected) / bound).max()
