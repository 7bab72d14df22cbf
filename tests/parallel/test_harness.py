"""The harness itself: what a failed start of processes says."""

import pytest

from .harness import ProcessFailed, run_ranks

SCRIPT = """
import os, pathlib, sys, time
rank = int(os.environ["RANK"])
print("this is", rank, flush=True)
if rank == 1:
    sys.exit(7)
time.sleep(60 if rank == 2 else 0)
pathlib.Path(sys.argv[1], f"rank_{rank}.json").write_text("0")
"""


def test_report_of_a_failed_start_ends_with_the_log_of_who_failed_and_how_each_ended(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(ProcessFailed) as error:
        run_ranks(script, 3, tmp_path)
    *_, log, states = str(error.value).splitlines()
    assert log == "this is 1"
    assert states.startswith("--- rank 0: ") and "rank 1: exit code 7, rank 2: still running" in states
