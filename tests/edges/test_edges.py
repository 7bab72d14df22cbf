"""Tests at the edges of forbidden memory."""

import re
import subprocess
import sys

import pytest

from .build import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"{missing()}")


def test_memory_beyond_tensors_is_found_and_strided_pixels_leave_it():
    """The planted faults end by signals; strided convolutions of few channels, where oneDNN itself does so, pass."""
    tests = [
        "tests/edges/planted.py",
        "tests/half_cpu/test_onednn_convolution_passes.py",
        "-k",
        "beyond or freed or strided",
    ]
    command = [sys.executable, "-m", "tests.edges", "-q", *tests, "-k", "beyond or freed or strided"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    freed = "test_number_of_a_freed_tensor_is_read"
    expected = (
        ("after", {*(f"test_number_beyond_a_tensor_is_written[after-{rows}]" for rows in (1, 65)), freed}),
        ("before", {*(f"test_number_beyond_a_tensor_is_written[before-{rows}]" for rows in (1, 65)), freed}),
    )
    parts = done.stdout.split("forbidden memory ")[1:]
    for part, (edge, failed) in zip(parts, expected, strict=True):
        assert part.startswith(edge)
        assert set(re.findall(r"^FAILED \S+::(\S+)", part, re.M)) == failed, done.stdout + done.stderr
        assert part.count("MemoryError: SIG") >= 3 and " 6 passed, 1 skipped" in part
    assert done.returncode == 1


def test_limit_of_addresses_that_would_forbid_nothing_is_said():
    command = f"ulimit -v 100000000 && exec {sys.executable} -m tests.edges tests/edges/planted.py"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "skipped: they need addresses without a limit" in done.stdout and not done.stderr
