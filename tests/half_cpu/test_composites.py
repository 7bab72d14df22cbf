"""Composites that a foreign project registers, and half_cpu and amp copied into a project of one file."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers

ROOT = Path(__file__).resolve().parents[2]


@half_cpu.composite("linear_gelu", casts_as="linear", inference_only=True)
def named(layer, x):
    return F.gelu(layer(x))


def kernel_of_rows(original, args, kwargs):
    """Serve matrices only, by what no other code would return."""
    (x,) = args
    return paddle.full_like(x, 7.0) if x.ndim == 2 else NotImplemented


@half_cpu.composite(kernel_of_rows, casts_as="softmax")
def rows(x):
    """Return the softmax of each row."""
    return F.softmax(x)


class Policy:
    def __init__(self, **dtypes):
        self.dtypes = dtypes

    def cast(self, op_name, tensors):
        return self.dtypes.get(op_name)


def test_composite_outside_of_a_dispatch_is_the_function_itself():
    assert rows(paddle.zeros([1, 2])).tolist() == [[0.5, 0.5]]
    assert (rows.__name__, rows.__doc__) == ("rows", "Return the softmax of each row.")


def test_composite_with_its_own_kernel_is_served_where_the_kernel_serves():
    with half_cpu.dispatch(backend=half_cpu.kernels.find("auto").name):
        expected = [[7.0, 7.0]] if half_cpu.kernels.find("auto").name != "reference" else [[0.5, 0.5]]
        assert rows(paddle.zeros([1, 2])).tolist() == expected
        assert rows(paddle.zeros([2])).tolist() == [0.5, 0.5]
    with half_cpu.dispatch(backend="reference"):
        assert rows(paddle.zeros([1, 2])).tolist() == [[0.5, 0.5]]


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="needs a backend with half kernels")
def test_composite_gets_the_casts_of_its_first_operator():
    with half_cpu.dispatch(Policy(softmax="bfloat16")):
        assert rows(paddle.zeros([1, 2])).dtype == paddle.bfloat16
    with half_cpu.dispatch(Policy(softmax="float32")):
        assert rows(paddle.zeros([1, 2]).astype("bfloat16")).dtype == paddle.float32  # the function itself


@half_cpu.composite(lambda original, args, kwargs: args[0].astype(kwargs["dtype"]), result_as="linear")
def half_of(x):
    return x


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="needs a backend with half kernels")
def test_composite_is_told_the_half_dtype_of_what_reads_its_result():
    x = paddle.ones([2])
    for policy, dtype in ((Policy(linear="bfloat16"), "bfloat16"), (Policy(linear="float32"), "float32"),
                          (Policy(linear=lambda tensor, operand: tensor), "float32"), (None, "float32")):  # fmt: skip
        with half_cpu.dispatch(policy):
            assert half_of(x).dtype == getattr(paddle, dtype)


@half_cpu.composite(lambda original, args, kwargs: args[0] * 7, casts_as="linear", then=("scale",))
def scaled(x, activation):
    return activation(x * 2)


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="needs a backend with half kernels")
def test_composite_with_an_activation_that_is_not_known_is_the_function():
    def halved(x):
        return x / 2

    with half_cpu.dispatch(Policy()):
        assert scaled(paddle.ones([2]), F.relu).tolist() == [7, 7]
        assert scaled(paddle.ones([2]), halved).tolist() == [1, 1]


@pytest.mark.parametrize("dtypes", [("float16", "bfloat16"), ("bfloat16", "float16"), ("float32", "bfloat16"),
                                    ("float16", "float32"), ("float32", "float32")])  # fmt: skip
def test_residual_of_two_formats_is_the_promoted_sum(dtypes):
    x, branch = (paddle.to_tensor([[0.5, -1.25, 3.0]] * 2).astype(dtype) for dtype in dtypes)
    scale = paddle.to_tensor([2.0, 0.5, 1.0]).astype(dtypes[1])
    results = []
    for backend in ("auto", "reference"):
        with half_cpu.dispatch(backend=backend):
            results.append(layers.residual(x, branch, scale))
    assert [result.dtype for result in results] == [paddle.float32] * 2
    assert results[0].tolist() == results[1].tolist() == [[1.5, -1.875, 6.0]] * 2


def test_composite_by_name_computes_what_the_function_computes():
    layer = paddle.nn.Linear(8, 4)
    x = paddle.randn([3, 8])
    with paddle.no_grad():
        expected = named(layer, x)
        with half_cpu.dispatch():
            actual = named(layer, x)
    assert float((actual - expected).abs().max()) < 1e-5  # eight float32 terms and two error functions


def test_both_folders_beside_a_script_of_one_file_train(tmp_path):
    """The script is the one of docs/half_cpu.md; it sees nothing of this repository."""
    page = (ROOT / "docs" / "half_cpu.md").read_text()
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    for folder in ("half_cpu", "amp"):
        shutil.copytree(ROOT / "image_classification" / folder, tmp_path / "precision" / folder,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, *losses = done.stdout.splitlines()
    assert first.startswith("auto/float16 on cpu (")
    losses = [float(line.rpartition(" ")[2]) for line in losses]
    assert losses[-1] < 0.5 * losses[0]
