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


def checkout(name, folder, tmp_path_factory):
    """Return a project's sources, of which the tests need `folder`: a checkout, or a copy of a git directory's HEAD.

    The variable of the project's name says where it is; skips without it.
    """
    source = Path(os.environ.get(name.upper(), DEFAULT.parents[1] / name))
    if (source / folder).is_dir():
        return source
    if not source.is_dir():
        pytest.skip(f"{name} is not there: {source} does not exist; run `make test-peers`")
    target = tmp_path_factory.mktemp(name)
    archive = ["git", f"--git-dir={source}", "archive", "HEAD", folder]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", target], input=packed, check=True)
    return target


@pytest.fixture(scope="session")
def paddlevit(tmp_path_factory):
    """Return the folder `image_classification` of PaddleViT."""
    return checkout("PaddleViT", "image_classification", tmp_path_factory) / "image_classification"


@pytest.fixture(scope="session")
def paddleclas(tmp_path_factory):
    """Return PaddleClas's sources."""
    return checkout("PaddleClas", "ppcls/arch", tmp_path_factory)
