"""What tools/benchmark_operators.py answers."""

import subprocess
import sys

import pytest

from tests.helpers.model_zoo import ROOT


def run(*words):
    program = ROOT / "tools" / "benchmark_operators.py"
    return subprocess.run([sys.executable, program, *words], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("word", "said"), [
    ("RELUU", "'RELUU' is part of no operator's name; did you mean relu or relu6 or prelu?"),
    ("conf", "'conf' is part of no operator's name; did you mean conv or of or concat?"),
    ("nonsense", "'nonsense' is part of no operator's name; without -operators the table has them all"),
])  # fmt: skip
def test_operator_of_no_name_is_refused_with_the_nearest_names(word, said):
    done = run(f"-operators=relu,{word}", "-threads=1")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: -operators: {said}\n")


def test_operator_is_measured_in_both_uses_and_each_format():
    done = run("-operators=ReLU6", "-formats=float32,bfloat16,float32", "-batch_size=1", "-rounds=1", "-threads=1")
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in done.stdout.splitlines() if "relu6" in line]
    assert done.returncode == 0, done.stderr
    assert rows == [["relu6", use, dtype] for use in ("evaluation", "training")
                    for dtype in ("float32", "bfloat16")]  # fmt: skip
