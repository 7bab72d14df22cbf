"""The peers' process: PEERS_PYTHON, or the environment that `make test-peers` creates."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DEFAULT = HERE.parents[1] / ".venv-peers" / "bin" / "python"


class Peers:
    """A running `reference.py`; `ask(**job)` waits for one job and fails with its error."""

    def __init__(self, python):
        self.process = subprocess.Popen(
            [python, str(HERE / "reference.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job, default=str) + "\n")
        self.process.stdin.flush()
        self._expect("done")

    def _expect(self, word):
        found = self.process.stdout.readline().strip()
        assert found == word, found or "the peers' process ended"


@pytest.fixture(scope="session")
def peers():
    python = os.environ.get("PEERS_PYTHON", str(DEFAULT))
    if not os.access(python, os.X_OK):
        pytest.skip(f"PyTorch and timm are not installed: {python} does not exist; run `make test-peers`")
    running = Peers(python)
    yield running
    running.process.stdin.close()
    running.process.wait(timeout=30)
