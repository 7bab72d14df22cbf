"""AMX in software is what Intel's manual says, and refuses faults; collected only where the file is named."""

import subprocess

import numpy as np
import pytest

from image_classification.half_cpu.compiler import FLAGS, SOURCES

from .build import COMPILER


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Return a program that makes the named fault, or a product."""
    path = tmp_path_factory.mktemp("amx") / "planted"
    source = COMPILER.with_name("planted.cpp")
    subprocess.run([COMPILER, *FLAGS, "-w", "-fno-openmp", f"-I{SOURCES}", source, "-o", path], check=True)
    return path


def product(program, left, right, sums):
    """Return sums + left @ right of [16, 32], [32, 16] and [16, 16], by one instruction."""
    factors = left, np.stack([right[0::2], right[1::2]], axis=-1)
    halves = [(np.float32(each).view(np.uint32) >> 16).astype(np.uint16).tobytes() for each in factors]
    done = subprocess.run([program, ""], input=b"".join(halves) + sums.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(16, 16)


def test_product_is_summed_and_rounded_in_the_manuals_order(program):
    """Of multiples of 2^-20 below 2^11, whose sums float64 holds exactly, so that each is rounded once."""
    generator = np.random.default_rng(0)
    left, right = (
        generator.integers(-255, 256, shape) * 2.0 ** generator.integers(-10, -5, shape)
        for shape in ((16, 32), (32, 16))
    )
    sums = np.float32(generator.integers(-(2**24), 2**24, (16, 16)) * 2.0**-20)
    halves = [np.zeros([16, 16], np.float32) for _ in range(2)]
    for k in range(32):
        halves[k % 2] = np.float32(halves[k % 2] + np.outer(left[:, k], right[k]))
    expected = sums + (halves[0] + halves[1])
    assert (expected != np.float32(sums + left @ right)).any()
    np.testing.assert_array_equal(product(program, left, right, sums), expected)


@pytest.mark.parametrize(
    ("left", "right", "before", "after"),
    [(2.0**-70, 2.0**-70, 0, 0), (2.0**-130, 2.0**20, 0, 0), (0, 0, 2.0**-130, 0), (2.0**-63, 2.0**-63, 0, 2.0**-121)],
    ids=["product", "factor", "sum", "normal"],
)
def test_numbers_below_the_smallest_normal_one_count_as_zero(left, right, before, after, program):
    found = product(program, np.full([16, 32], left), np.full([32, 16], right), np.full([16, 16], before, np.float32))
    np.testing.assert_array_equal(found, after)


def test_what_is_not_finite_stays_in_its_row(program):
    left = np.ones([16, 32])
    left[1, 3], left[2, 4], left[3, 5:7] = np.nan, np.inf, [np.inf, -np.inf]
    found = product(program, left, np.ones([32, 16]), np.zeros([16, 16], np.float32))
    np.testing.assert_array_equal(found[:5, 0], [32, np.nan, np.inf, np.nan, 32])


FAULTS = {
    "not asked for": "nobody asked the system",
    "no configuration": "without a configuration",
    "another's": "leaves out",
    "not written": "not written since",
    "left behind": "not written since",
    "after release": "without a configuration",
    "too tall": "more than 16 x 64",
    "do not fit": "shapes do not fit",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_a_kernel_ends_the_process_and_says_why(fault, program):
    done = subprocess.run([program, fault], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode < 0 and FAULTS[fault] in done.stderr
