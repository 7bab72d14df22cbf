"""Start the reading process and take down what becomes of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def results(*arguments):
    """Yield the child's lines; the last one is about the case in which it died, if it did."""
    command = [sys.executable, "-m", "tests.fuzz.child", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    begun = None
    try:
        for line in map(json.loads, child.stdout):
            if "begin" in line:
                begun = line["begin"]
            else:
                yield line
        code = child.wait()
        if code:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield {"path": begun, "outcome": "failed", "text": f"the process died: {name}"}
    finally:
        child.kill()
        child.wait()
