"""`main_multi_gpu.py` as a user starts it, and what happens to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .harness import PATIENCE, ROOT, clean_environment, own_group

FOLDER = ROOT / "image_classification" / "ViT"
# Small enough for a step to take some 20 ms, and the same in every run so that checkpoints fit.
SMALL = ("-cfg=./configs/vit_tiny_digits.yaml", "-batch_size=32", "-opts", "MODEL.EMBED_DIM=32", "MODEL.DEPTH=2",
         "TRAIN.WARMUP_EPOCHS=1", "REPORT_FREQ=5", "SAVE_STEPS=5", "DATA.NUM_WORKERS=0")  # fmt: skip


def command(*arguments, script="main_multi_gpu.py", launcher=()):
    return [sys.executable, *launcher, script, *arguments]


class Program:
    """A started run; `text()` is what it printed so far."""

    def __init__(self, words, log, **variables):
        self.log = Path(log)
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(
                words, cwd=FOLDER, env=clean_environment(**variables), stdout=file, stderr=subprocess.STDOUT,
                preexec_fn=own_group,
            )  # fmt: skip

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, text, timeout=180):
        """Return when the run has printed `text`."""
        deadline = time.monotonic() + timeout * PATIENCE
        while text not in self.text():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {text!r}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {text!r} in {timeout} s:\n{self.text()}"
            time.sleep(0.05)

    def wait(self, timeout):
        """Return (exit code, seconds)."""
        start = time.monotonic()
        try:
            return self.process.wait(timeout), time.monotonic() - start
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.text()}") from None

    def workers(self):
        """Return the process ids of the ranks, in order."""
        return [pid for pid in descendants(self.process.pid) if "main_multi_gpu.py" in command_line(pid)]

    def kill(self):
        for pid in [*descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def descendants(pid):
    """Return the process ids below `pid`, oldest first."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def report(folder):
    return json.loads((Path(folder) / "report.json").read_text())
