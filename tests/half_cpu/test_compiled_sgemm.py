"""float32 products by sgemm: compared with float64, and when they are chosen."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, compiled_sgemm, onednn_matmul
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_primitives import Layout
from tests.helpers.onednn_runs import FLOAT32, needs_onednn, run, tensors

library = compiled_library.load()
pytestmark = [needs_onednn, pytest.mark.skipif(library is None, reason="needs a C++ compiler")]


def matrix(rows, columns, step, spoilt=()):
    """Return a tensor [rows, columns] within rows of `step`, what lies between NaN, and its values in float64."""
    values = np.full([rows, step], np.nan, "float32")
    values[:, :columns] = np.random.default_rng(rows + columns).standard_normal([rows, columns])
    for place, value in spoilt:
        values[place] = value
    return paddle.to_tensor(values), values[:, :columns].astype("float64")


@pytest.mark.parametrize("spoilt", [(), [((5, 0), np.inf), ((9, 1), np.nan)]], ids=["finite", "inf and NaN"])
@pytest.mark.parametrize("transposed", [True, False], ids=["columns", "plain"])
@pytest.mark.parametrize("sizes", [(70, 3, 2), (33, 96, 1031), (1000, 8, 64), (24, 72, 3136)], ids=str)
def test_product_within_wider_rows_is_that_of_float64(sizes, transposed, spoilt):
    m, n, k = sizes
    left, exact_left = matrix(*((k, m, m + 5) if transposed else (max(m, 10), k, k + 5)), spoilt if k > 2 else ())
    right, exact_right = matrix(k, n, n + 3)
    m = m if transposed else max(m, 10)
    out = paddle.full([m, n + 2], 7.0)
    address = onednn.load().address("sgemm")
    steps = left.shape[1], right.shape[1], out.shape[1]
    library.sgemm(address, transposed, m, n, k, *steps, left.data_ptr(), right.data_ptr(), out.data_ptr())
    exact_left = exact_left.T if transposed else exact_left
    exact = exact_left @ exact_right
    # each of k terms adds at most 2^-24 of the absolute sum, and as a walk of random steps the root of their number
    bound = np.abs(exact_left) @ np.abs(exact_right) * 2.0**-24 * np.sqrt(k) + 2.0**-24 * np.abs(exact)
    found, finite = out[:, :n].numpy(), np.isfinite(exact)
    assert (np.abs(found[finite] - exact[finite]) <= bound[finite]).all()
    np.testing.assert_array_equal(np.where(finite, 0, found), np.where(finite, 0, exact))
    assert (out[:, n:].numpy() == 7).all()


def layout(rows, columns, transposed=False, data_type=onednn.FLOAT32):
    return Layout(data_type, (rows, columns), (1, rows) if transposed else (columns, 1))


@pytest.mark.parametrize(
    ("left", "right", "out", "chosen"),
    [
        (layout(8, 64, True), layout(64, 1000), layout(8, 1000), True),
        (layout(8, 63, True), layout(63, 1000), layout(8, 1000), False),
        (layout(1024, 64, True), layout(64, 1024), layout(1024, 1024), True),
        (layout(1024, 64, True), layout(64, 1025), layout(1024, 1025), False),
        (layout(64, 256), layout(256, 256), layout(64, 256), True),
        (layout(64, 256), layout(256, 257), layout(64, 257), False),
        (layout(63, 256), layout(256, 256), layout(63, 256), False),
        (layout(64, 256), layout(256, 256, True), layout(64, 256), False),
        (layout(64, 256), layout(256, 256), layout(64, 256, True), False),
        (Layout(onednn.FLOAT32, (64, 8), (0, 1)), layout(8, 8), layout(64, 8), False),
        (Layout(onednn.FLOAT32, (64, 8), (16, 2)), layout(8, 8), layout(64, 8), False),
        (layout(64, 8), Layout(onednn.FLOAT32, (8, 8), None), layout(64, 8), False),
        *((layout(64, 8, data_type=one), layout(8, 8, data_type=one), layout(64, 8, data_type=one), False)
          for one in (onednn.FLOAT16, onednn.BFLOAT16)),
    ],
)  # fmt: skip
def test_sgemm_is_chosen_for_plain_rows_and_small_factors(left, right, out, chosen):
    assert compiled_sgemm.is_sgemm(left, right, None, out, ()) is chosen
    assert not compiled_sgemm.is_sgemm(left, right, out, out, ())


def strided(x, filters):
    return F.conv2d(x, filters, stride=2)


CASES = {  # operator, shapes of its inputs, the products that sgemm has in its passes: sizes of the result
    "linear": (F.linear, [(2, 160, 64), (64, 96)], [(320, 96), (64, 96)]),
    "transposed weight": (functools.partial(paddle.matmul, transpose_y=True), [(200, 40), (64, 40)],
                          [(200, 40), (64, 40)]),
    "single pixels": (F.conv2d, [(2, 48, 17, 16), (33, 48, 1, 1)], [(544, 48), (33, 48)]),
    "single pixels by strides": (strided, [(2, 8, 17, 16), (4, 8, 1, 1)], [(144, 8), (4, 8)]),
    "columns": (functools.partial(paddle.matmul, transpose_x=True), [(300, 8), (300, 12)], [(8, 12), (300, 12)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operator_and_gradients_are_paddles(case, monkeypatch):
    function, shapes, built = CASES[case]
    calls = []

    def sgemm(left, right, bias, out, post_ops):
        calls.append(out.shape)
        return compiled_sgemm.sgemm(left, right, bias, out, post_ops)

    monkeypatch.setattr(onednn_matmul, "sgemm", sgemm)
    monkeypatch.setattr(onednn_matmul, "cache", onednn_matmul.cache.__class__())
    inputs = tensors(shapes, FLOAT32)
    result, gradients = run(function, inputs, "onednn")
    expected, expected_gradients = run(function, inputs, "reference")
    assert calls == built
    for found, wanted in zip((result, *gradients), (expected, *expected_gradients), strict=True):
        found, wanted = found.numpy(), wanted.numpy()
        # up to 544 terms, each of which adds 2^-24 of the largest sum at random
        assert np.abs(found - wanted).max() <= 2.0**-24 * np.sqrt(544) * np.abs(wanted).max()


def test_recorded_pass_with_a_product_of_columns_reads_the_images_of_each_call():
    class Columns(paddle.nn.Layer):
        def forward(self, x):
            return paddle.matmul(x, x, transpose_x=True)

    model = Columns().eval()
    with half_cpu.dispatch(), paddle.no_grad():
        for seed in range(6):
            x = paddle.to_tensor(np.random.default_rng(seed).standard_normal([128, 6]).astype("float32"))
            np.testing.assert_array_equal(half_cpu.replay(model, x).numpy(), model(x).numpy())


THREADS = """
from image_classification.runtime import prepare_process
prepare_process()
import hashlib
import numpy as np
import paddle
from image_classification import half_cpu
random = np.random.default_rng(0)
bits = hashlib.sha256()
for *columns, rows in ((2, 3, 8192), (7, 89, 6699), (64, 64, 3136), (1000, 8, 64)):
    left, right = (paddle.to_tensor(random.standard_normal([rows, n]).astype("float32")) for n in columns)
    with half_cpu.dispatch():
        bits.update(paddle.matmul(left, right, transpose_x=True).numpy().tobytes())
print(bits.hexdigest())
"""


def in_a_process(script, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | environment,
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.skipif("ONEDNN_MAX_CPU_ISA" in os.environ, reason="oneDNN held to less multiplies without MKL")
def test_columns_of_two_matrices_have_the_same_bits_with_any_number_of_threads():
    """Of two columns or more; to sum up a vector MKL's threads take shares, as oneDNN's do."""
    assert len({in_a_process(THREADS, OMP_NUM_THREADS=count) for count in "123"}) == 1


WITHOUT = """
from image_classification.runtime import prepare_process
prepare_process()
import paddle
import paddle.nn.functional as F
from image_classification import half_cpu
from image_classification.half_cpu import onednn_primitives
x, images, filters = paddle.ones([600, 64]), paddle.ones([2, 8, 9, 9]), paddle.ones([4, 8, 1, 1])
images.stop_gradient = filters.stop_gradient = False
with half_cpu.dispatch():
    paddle.matmul(x, paddle.ones([64, 64]))
    F.conv2d(images, filters).sum().backward()
print(*(build.__name__ for build, _ in onednn_primitives.cache._entries if "matmul" in build.__module__))
"""


def test_machine_without_a_compiler_packs_and_convolves_as_without_sgemm():
    """oneDNN's product of many rows gets its right factor rearranged, gradients of single pixels are convolutions."""
    assert in_a_process(WITHOUT, OMP_NUM_THREADS="1", CXX="none") == "_describe _describe_packing"
