"""The type checker of `make lint` sees what it is there for: wrong calls of the project's functions and of Paddle's."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import paddle
from image_classification import amp, half_cpu
from image_classification.config import load_config
from image_classification.parallel import connect
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import progress_bar, seed_everything

load_config(["-amp"])
load_config(["-amp"], precision="auto")  # unexpected keyword
seed_everything("7")  # wrong type
progress_bar(10, "epoch")  # missing argument
precision: amp.Precision = amp.build_precision("auto")
amp.build_precision("auto", clip_grad_norm="1")  # wrong type
precision.step(None).grad_norms  # no such attribute
precision.backward()  # missing argument
half_cpu.dispatch(backend=1)  # wrong type
connect(load_config([])).gather()  # missing argument
SingleProcess().sum(1, 2)  # too many arguments
paddle.nn.Linear(2, outputs=3)  # unexpected keyword of Paddle
"""


def test_wrong_calls_are_errors(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line]
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "  # " in line]
    assert found == wrong, done.stdout + done.stderr
