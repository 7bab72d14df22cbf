"""Drivers that are too old and builds without a GPU's architecture; the driver is a library of our own."""

import os
import shutil
import subprocess
import sys

import paddle
import pytest

from image_classification.runtime import UserError, cuda, devices

# What `select_device` does in a Paddle for CUDA 12.6 with a GPU of each capability, whose first operator may fail as
# that of a missing architecture does.
SELECT = """
import paddle
from image_classification.runtime import UserError, select_device

def no_image(*arguments):
    raise OSError("(External) CUDA error(209), no kernel image is available for execution on the device.")

paddle.is_compiled_with_cuda = lambda: True
paddle.version.cuda = lambda: "12.6"
paddle.version.cuda_archs = lambda: [80, 86, 90]
paddle.device.cuda.device_count = lambda: 1
paddle.device.cuda.get_device_name = lambda: "GeForce"
paddle.set_device = lambda name: None
ones = paddle.ones
for device, capability, fails in {cases}:
    paddle.device.cuda.get_device_capability = lambda: capability
    paddle.ones = no_image if fails else ones
    try:
        print(select_device(device))
    except UserError as error:
        print(error)
"""


def driver_of(folder, version):
    """Build a driver that runs CUDA up to a version, 12040 for 12.4, and return an environment that finds it."""
    if shutil.which("g++") is None:
        pytest.skip("a driver of our own needs g++ (Debian: apt-get install g++)")
    source = folder / "driver.cc"
    source.write_text(f'extern "C" int cuDriverGetVersion(int* version) {{ *version = {version}; return 0; }}')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def select(environment, *cases):
    """Return a line for each (device, capability, whether the first operator fails): what is selected, or the error."""
    command = [sys.executable, "-c", SELECT.format(cases=cases)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def test_driver_older_than_paddles_cuda_is_refused_with_both_versions(tmp_path):
    said = select(driver_of(tmp_path, 11040), *((device, (8, 6), False) for device in ("gpu", "gpu:0", "auto")))
    assert len(said) == 3
    for line in said:
        assert "runs CUDA up to 11.4, this Paddle is built for CUDA 12.6" in line and "-device cpu" in line


def test_gpu_without_code_is_refused_and_one_that_runs_all_the_same_is_not(tmp_path):
    environment = driver_of(tmp_path, 12020)  # of the same first number: it runs 12.6 too
    *runs, refused = select(environment, ("gpu", (8, 6), False), ("gpu", (12, 0), False), ("gpu", (12, 0), True))
    assert runs == ["gpu", "gpu"]
    assert "has compute capability 12.0, this Paddle is built for 80, 86, 90" in refused


@pytest.mark.parametrize(
    ("built_for", "driver", "usable"),
    [("11.8", 11020, True), ("11.8", 12090, True), ("12.6", 11080, False), ("13.0", 12090, False),
     ("12.6", None, True), ("False", 12090, True)],
)  # fmt: skip
def test_drivers_run_older_cudas_and_those_of_their_own_first_number(built_for, driver, usable):
    try:
        cuda.refuse_old_driver(built_for, driver)
    except UserError:
        assert not usable
    else:
        assert usable


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [((8, 6), [80, 90], True), ((8, 0), [86], False), ((7, 5), [80, 86, 90], False), ((12, 0), [75, 80, 90], False),
     ((12, 0), [90, 100, 120], True), ((10, 3), [100], True), ((6, 1), [], False)],
)  # fmt: skip
def test_gpu_runs_code_of_its_major_capability_and_no_later_minor_one(capability, architectures, runs):
    assert cuda.has_code_for(capability, architectures) == runs


def test_machine_without_a_driver_has_no_version():
    if devices.Gpu("gpu").count():
        pytest.skip("this machine has a GPU")
    if not paddle.is_compiled_with_cuda():
        assert cuda.driver_version() is None
