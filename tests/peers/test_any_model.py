"""The example for any Paddle model beside torchvision's of the same name in PyTorch."""

import os
import subprocess
import sys

import pytest

from examples import accelerate_any_model as example

from .conftest import DEFAULT

pytestmark = pytest.mark.peers


def test_peers_that_torchvision_has_are_measured_and_others_are_left_out_with_a_line(peers):
    words = ["shufflenet_v2_x0_5", "crnn", "--image-size", "32", "--batch-size", "2", "--rounds", "1", "--threads", "1"]
    words += ["--peers", "eager", "--peer-python", os.environ.get("PEERS_PYTHON", str(DEFAULT))]
    done = subprocess.run([sys.executable, example.__file__, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|") and "---" not in line]
    at = head.index(" PyTorch eager ")
    known, unknown = rows[:2], rows[2:]
    assert all(float(row[at].split()[0]) > 0 for row in known)
    assert all("nan" in row[at] for row in unknown)
    assert done.stderr == "PyTorch is not measured with crnn: torchvision has no such model\n"
