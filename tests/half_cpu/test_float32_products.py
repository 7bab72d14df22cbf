"""float32 products of matrices: which kernel multiplies, on any number of threads, and while signals are handled."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, onednn, onednn_matmul
from tests.helpers.onednn_runs import FLOAT32, by_threads, needs_onednn, run, tensors

library = compiled_library.load()
pytestmark = [needs_onednn, pytest.mark.skipif(library is None, reason="needs a C++ compiler")]


def strided(x, filters):
    return F.conv2d(x, filters, stride=2)


def patches(x, filters):
    return F.conv2d(x, filters, stride=16)


CASES = {  # operator, shapes of its inputs
    "linear": (F.linear, [(2, 160, 64), (64, 96)]),
    "transposed weight": (lambda x, y: paddle.matmul(x, y, transpose_y=True), [(200, 40), (64, 40)]),
    "single pixels": (F.conv2d, [(2, 48, 17, 16), (33, 48, 1, 1)]),
    "single pixels by strides": (strided, [(2, 8, 17, 16), (4, 8, 1, 1)]),
    "patches": (patches, [(2, 3, 160, 160), (24, 3, 16, 16)]),
    "columns": (lambda x, y: paddle.matmul(x, y, transpose_x=True), [(300, 8), (300, 12)]),
}


@pytest.mark.parametrize("interruptible", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_operator_and_gradients_are_paddles(case, interruptible, monkeypatch):
    """Also where oneDNN's products are not used at all, as on a processor without AVX-512."""
    if interruptible and not onednn_matmul.takes_signals():
        pytest.skip("oneDNN has no product that is")
    monkeypatch.setattr(onednn_matmul, "takes_signals", lambda: interruptible)
    monkeypatch.setattr(onednn_matmul, "cache", onednn_matmul.cache.__class__())
    function, shapes = CASES[case]
    inputs = tensors(shapes, FLOAT32)
    result, gradients = run(function, inputs, "onednn")
    expected, expected_gradients = run(function, inputs, "reference")
    for found, wanted in zip((result, *gradients), (expected, *expected_gradients), strict=True):
        found, wanted = found.numpy(), wanted.numpy()
        # up to 768 terms, each of which adds 2^-24 of the largest sum at random
        assert np.abs(found - wanted).max() <= 2.0**-24 * np.sqrt(768) * np.abs(wanted).max()
    made = {product.implementation for product in onednn_matmul.cache._entries.values()}
    assert interruptible or made <= {"compiled"}


def test_recorded_pass_with_a_product_of_columns_reads_the_images_of_each_call():
    class Columns(paddle.nn.Layer):
        def forward(self, x):
            return paddle.matmul(x, x, transpose_x=True)

    model = Columns().eval()
    with half_cpu.dispatch(), paddle.no_grad():
        for seed in range(6):
            x = paddle.to_tensor(np.random.default_rng(seed).standard_normal([128, 6]).astype("float32"))
            np.testing.assert_array_equal(half_cpu.replay(model, x).numpy(), model(x).numpy())


START = """
from image_classification.runtime import prepare_process
prepare_process()
import signal
import time
import numpy as np
import paddle
import paddle.nn.functional as F
from image_classification import half_cpu
random = np.random.default_rng(0)
def normal(*sizes):
    return paddle.to_tensor(random.standard_normal(sizes).astype("float32"))
"""


def in_a_process(script, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", START + script], env=os.environ | environment, cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:  # Paddle's report of a crash waits for a lock of the heap that it broke in
        process.send_signal(signal.SIGKILL)
        pytest.fail(f"hangs: {process.communicate()[1]}")
    assert process.returncode == 0, stderr
    return stdout.splitlines()[-1]


@pytest.mark.parametrize("sizes", [(2, 3, 8192), (7, 89, 6699), (64, 64, 3136), (1000, 8, 64), (8, 1, 9000)], ids=str)
def test_columns_of_two_matrices_have_the_same_bits_with_any_number_of_threads(sizes):
    """Of two or more of the left one: to sum up a vector oneDNN's threads take shares."""
    *columns, rows = sizes
    left, right = (paddle.randn([rows, count]) for count in columns)

    def multiply():
        with half_cpu.dispatch():
            return paddle.matmul(left, right, transpose_x=True).numpy().tobytes()

    assert len({*by_threads((1, 2, 3), multiply)}) == 1


UNDER_SIGNALS = """
def products(left, right):
    yield paddle.matmul(left, right)
    yield paddle.matmul(left, right.T, transpose_y=True)
    yield paddle.matmul(left, left, transpose_x=True)

def patches(images, filters):
    result = F.conv2d(images, filters, stride=filters.shape[-1])
    yield result
    yield from paddle.grad(result.sum(), [images, filters])

cases = [(products, normal(600, terms), normal(terms, 64)) for terms in (40, 192, 256, 1088)]
cases.append((patches, normal(2, 3, 224, 224), normal(192, 3, 16, 16)))
for tensor in cases[-1][1:]:
    tensor.stop_gradient = False

def compute():
    with half_cpu.dispatch():
        return [result.numpy() for function, *tensors in cases for result in function(*tensors)]

undisturbed = compute()
count = 0
def handle(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
end = time.monotonic() + 2
while time.monotonic() < end:
    for found, wanted in zip(compute(), undisturbed, strict=True):
        assert (found == wanted).all()
signal.setitimer(signal.ITIMER_REAL, 0)
print(count)
"""
AVX2, BARE = {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"CXX": "none"}
MACHINES = {"as it is": {}, "without a compiler": BARE, "without AVX-512": AVX2, "without both": AVX2 | BARE}


@pytest.mark.parametrize("environment", MACHINES.values(), ids=MACHINES)
def test_products_while_signals_are_handled_are_the_same(environment):
    """oneDNN's `sgemm` has its stack in the heap meanwhile: within the two seconds it crashed each time. Gradients of
    patches would be products of it everywhere."""
    assert int(in_a_process(UNDER_SIGNALS, OMP_NUM_THREADS="2", **environment)) > 100


WITHOUT = """
from image_classification.half_cpu import onednn_primitives
images, filters = paddle.ones([2, 8, 9, 9]), paddle.ones([4, 8, 1, 1])
images.stop_gradient = filters.stop_gradient = False
with half_cpu.dispatch():
    paddle.matmul(paddle.ones([600, 64]), paddle.ones([64, 64]))
    F.conv2d(images, filters).sum().backward()
    half, taps = paddle.ones([2, 3, 9, 8], "bfloat16"), paddle.ones([3, 1, 3, 3], "bfloat16")
    half.stop_gradient = taps.stop_gradient = False  # which float32, where they would run, has no pass for
    F.conv2d(half, taps, stride=2, padding=1, dilation=2, groups=3).astype("float32").sum().backward()
print(*(build.__name__ for build, _ in onednn_primitives.cache._entries if "matmul" in build.__module__))
"""


@pytest.mark.skipif(not (onednn.available() and onednn_matmul.takes_signals()), reason="float32 is Paddle's then")
def test_machine_without_a_compiler_packs_and_convolves_as_oneDNN_likes_it():
    """Its product of many rows gets its right factor rearranged, gradients of single pixels are convolutions."""
    assert in_a_process(WITHOUT, OMP_NUM_THREADS="1", CXX="none") == "_describe _describe_packing"
