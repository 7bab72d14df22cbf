"""What tools/benchmark_operators.py answers."""

import subprocess
import sys

from tests.helpers.model_zoo import ROOT


def run(*words):
    program = ROOT / "tools" / "benchmark_operators.py"
    return subprocess.run([sys.executable, program, *words], capture_output=True, text=True, timeout=300)


def test_operator_of_no_name_is_refused_with_the_names():
    done = run("-operators=relu,reluu", "-threads=1")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert done.returncode == 2
    assert done.stdout == ""
    assert line.startswith("error: -operators: 'reluu' is part of none of the names linear 768 to 3072, ")


def test_operator_is_measured_in_both_uses_and_each_format():
    done = run("-operators=relu6", "-formats=float32,bfloat16,float32", "-batch_size=1", "-rounds=1", "-threads=1")
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in done.stdout.splitlines() if "relu6" in line]
    assert done.returncode == 0, done.stderr
    assert rows == [["relu6", use, dtype] for use in ("evaluation", "training")
                    for dtype in ("float32", "bfloat16")]  # fmt: skip
