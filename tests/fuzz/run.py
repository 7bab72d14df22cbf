"""Start the reading process, again and again, and take down what becomes of it."""

import collections
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH = 2000  # cases of one process


def results(*arguments):
    """Yield the child's lines about its cases; the last one is about the case in which it died, if it did."""
    command = [sys.executable, "-m", "tests.fuzz.child", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
    begun = None
    try:
        for line in child.stdout:
            if not line.startswith("{"):
                continue  # a library that prints
            line = json.loads(line)
            if "begin" in line:
                begun = line["begin"]
            else:
                yield line
        code = child.wait()
        if code:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield {"case": begun, "format": "?", "outcome": "failed", "text": f"the process died: {name}"}
    finally:
        child.kill()
        child.wait()


class Report:
    """Counts by format and outcome, and the failures."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.failures = []

    @property
    def total(self):
        return sum(sum(counts.values()) for counts in self.counts.values())

    def add(self, line):
        self.counts[line["format"]][line["outcome"]] += 1
        if line["outcome"] == "failed":
            self.failures.append(line)

    def table(self):
        """Return the counts as text."""
        lines = [f"{'format':<26}{'cases':>9}{'read':>9}{'refused':>9}{'failed':>9}"]
        total = collections.Counter()
        for name, counts in [*sorted(self.counts.items()), ("all", total)]:
            numbers = [sum(counts.values()), *(counts[outcome] for outcome in ("read", "refused", "failed"))]
            lines.append(f"{name:<26}" + "".join(f"{number:>9}" for number in numbers))
            if counts is not total:
                total.update(counts)
        return "\n".join(lines)


def fuzz(folder, first=0, cases=None, seconds=None):
    """Return the :class:`Report` of the cases from a number on, as many as asked for, or until the time is over."""
    report, number = Report(), first
    deadline = time.monotonic() + seconds if seconds else None
    while (cases is None or number < first + cases) and (deadline is None or time.monotonic() < deadline):
        end = min(number + BATCH, first + cases) if cases is not None else number + BATCH
        for line in results("cases", folder, number, end):
            report.add(line)
            if isinstance(line["case"], int):
                number = line["case"] + 1
            elif line["case"] is None:  # it did not even begin
                return report
            if deadline is not None and time.monotonic() > deadline:
                break
    return report
