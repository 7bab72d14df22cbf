"""The first losses of a ViT and a ResNet in every mode are those in the file, on this CPU and on older ones."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import golden
from tests.helpers.model_zoo import ROOT

# What a CPU with fewer instructions computes with: oneDNN and MKL are told to use no newer ones, and without a compiler
# half_cpu has the reference arithmetic only. AMX and AVX512-BF16 differ from it as kernels do from the reference.
NO_COMPILER = {"CXX": "/nonexistent"}
MACHINES = {
    "AVX2 without a compiler": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_DEBUG_CPU_TYPE": "5", **NO_COMPILER},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_DEBUG_CPU_TYPE": "5"},
    "AVX-512 without BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "SSE 4.1, no oneDNN": {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_DEBUG_CPU_TYPE": "4", **NO_COMPILER},
    "two threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
}


@pytest.mark.parametrize(("family", "mode", "dtype"), golden.RUNS)
def test_first_losses_are_the_golden_ones(family, mode, dtype):
    entry = golden.read()[golden.key_of(family, mode, dtype)]
    losses, skipped = golden.losses_of(family, mode, dtype)
    assert skipped == entry["skipped"]
    np.testing.assert_allclose(losses, entry["losses"], rtol=0, atol=entry["tolerance"])


def test_golden_losses_hold_on_a_plain_older_cpu():
    assert_golden("AVX2 without a compiler", "fp32,auto")


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_golden_losses_of_every_mode_hold_on_other_machines(machine):
    assert_golden(machine, ",".join({mode: None for _, mode, _ in golden.RUNS}))


def assert_golden(machine, modes):
    """Assert that another process, on such a machine, finds losses within the tolerances and no other skipped step."""
    environment = {**os.environ, **MACHINES[machine]}
    command = [sys.executable, "-m", "tests.helpers.golden", "-check", modes]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(machine, found)
    assert len(found) == sum(mode in modes.split(",") for _, mode, _ in golden.RUNS)
    assert {run: figures for run, figures in found.items() if figures[0] > 1 or figures[1]} == {}


def test_file_has_every_run_and_tolerances_that_find_faults():
    """A tolerance is a small part of what a loss moves by within the golden steps, so that a wrong step shows."""
    golden_losses = golden.read()
    assert set(golden_losses) == {golden.key_of(*run) for run in golden.RUNS}
    for key, entry in golden_losses.items():
        assert len(entry["losses"]) == golden.STEPS
        assert entry["tolerance"] < 0.15 * np.ptp(entry["losses"]), key
