"""Which kernels a machine gets."""

import os
import subprocess
import sys
from pathlib import Path

import paddle
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import onednn, onednn_binary, onednn_matmul
from image_classification.half_cpu.compiled_library import load
from tests.helpers.onednn_runs import BFLOAT16, FLOAT16, needs_onednn

PROBE = """
from image_classification.runtime import prepare_process
prepare_process()
import paddle
from image_classification import half_cpu
from image_classification.amp import build_precision
x, w = paddle.rand([8, 32]), paddle.rand([32, 16])
with half_cpu.dispatch():
    wide, half = paddle.matmul(x, w), paddle.matmul(x.astype("bfloat16"), w.astype("bfloat16"))
exact = paddle.matmul(x.astype("float64"), w.astype("float64"))
print(float((wide - exact.astype("float32")).abs().max()) < 1e-5, half.dtype == paddle.bfloat16)
print(build_precision("fp32").describe())
for dtype in ("bfloat16", "float16"):
    print(build_precision("auto", dtype=dtype).describe())
"""

COMPILED = half_cpu.backend_name(FLOAT16)
ALONE = "onednn" if onednn.available() and onednn_matmul.takes_signals() else "paddle"  # float32, without a compiler
BY_ONEDNN = onednn.instruction_set() and f"onednn {onednn.instruction_set()} alone"
# Intel's processors have AMX for bfloat16, and vectors of it that are slower than the compiled kernels' of float32.
BY_VECTORS = onednn.instruction_set() and not (load() and load().is_intel) and "onednn avx512_bf16"


@needs_onednn
@pytest.mark.parametrize(("isa", "compiler", "float32_by", "bfloat16_by", "float16_by"), [
    ("ALL", "c++", "onednn", half_cpu.backend_name(BFLOAT16), COMPILED),
    ("ALL", "none", ALONE, BY_ONEDNN or "reference", "reference"),
    ("AVX512_CORE_BF16", "c++", "onednn", BY_VECTORS or COMPILED, COMPILED),
    ("AVX512_CORE", "c++", "onednn", COMPILED, COMPILED),
    ("AVX2", "c++", "onednn", COMPILED, COMPILED),
    ("AVX2", "none", "paddle", "reference", "reference"),
    ("SSE41", "c++", "paddle", "reference", "reference"),
])  # fmt: skip
def test_machine_with_less_computes_and_says_by_what(isa, compiler, float32_by, bfloat16_by, float16_by):
    """oneDNN itself is told to use no newer instructions; $CXX names a compiler that is not there."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", isa) if isa == "ALL" else isa  # all that these tests have
    chosen = os.environ.get("CXX", compiler) if compiler == "c++" else compiler
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1", "CXX": chosen}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-4:] == [
        "True True", f"fp32/float32 on cpu ({float32_by})", f"auto/bfloat16 on cpu ({bfloat16_by})",
        f"auto/float16 on cpu ({float16_by})",
    ], done.stderr  # fmt: skip


LONG_PRODUCT = """
from image_classification.runtime import prepare_process
prepare_process()
import numpy as np
import paddle
from image_classification import half_cpu
values = np.random.default_rng(0).standard_normal([2, 1200, 96]).astype("float32")
x, w = (paddle.to_tensor(one).astype("bfloat16") for one in (values[0], values[1, :96]))
exact = x.astype("float64").numpy() @ w.astype("float64").numpy()
x.stop_gradient = w.stop_gradient = False
with half_cpu.dispatch():
    trained = paddle.nn.functional.linear(x, w)
    trained.sum().backward()
with half_cpu.dispatch(), paddle.no_grad():
    kept = paddle.nn.functional.linear(x, w)
for result in (trained, kept):
    print(float(np.abs(result.astype("float64").numpy() - exact).max() / np.abs(exact).max()) < 2.0**-8)
print(float(np.abs(x.grad.astype("float64").numpy() - w.astype("float64").numpy().sum(1)).max()) < 2.0**-8 * 40)
"""


@pytest.mark.parametrize("isa", ["ALL", "AVX512_CORE", "AVX2"])
def test_bfloat16_product_of_many_rows_runs_on_a_machine_without_bfloat16_instructions(isa):
    """bfloat16 has 8 bits: half a step is 2^-9 of a number; a sum of 96 stays below 40."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", LONG_PRODUCT]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-3:] == ["True"] * 3, done.stderr[-2000:]


@needs_onednn
def test_small_dense_float32_tensors_are_left_to_paddle_others_get_a_kernel():
    def is_served(x, y):
        x.stop_gradient = False
        with half_cpu.dispatch():
            return "PyLayer" in (x + y).grad_fn.name()

    small, large, image = [1 << 16], [1, 1, 1, (1 << 16) + 1], [2, 3, 4, 5]
    assert not is_served(paddle.ones(small), paddle.ones(small))
    assert is_served(paddle.ones(large), paddle.ones(large))
    assert is_served(paddle.ones(small, "bfloat16"), paddle.ones(small, "bfloat16"))
    assert is_served(paddle.ones(image), paddle.ones(image[1:]))  # repeated
    strided = paddle.ones(image).transpose([0, 2, 3, 1])  # Paddle would copy it and lose the order
    assert is_served(strided, strided.detach())


@needs_onednn
def test_float32_sum_without_a_gradient_is_paddles_own(monkeypatch):
    made, sum_of = [], onednn_binary.sum_of
    monkeypatch.setattr(onednn_binary, "sum_of", lambda *pair: made.append(pair) or sum_of(*pair))
    x = paddle.ones([1, 1, 1, (1 << 16) + 1])  # of what is no image one thread is Paddle's
    with half_cpu.dispatch(backend="onednn"):
        with paddle.no_grad():
            assert (x + x).sum() == 2 * x.size and not made
        assert (x + x).sum() == 2 * x.size and not made
        x.stop_gradient = False
        assert (x + x).sum() == 2 * x.size and made
