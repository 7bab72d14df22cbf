"""The digits against scikit-learn's own reader."""

import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from image_classification.data import digits


def test_digits_are_those_that_scikit_learn_reads():
    images, labels = digits._read()
    expected = load_digits()
    np.testing.assert_array_equal(images, expected.images)
    np.testing.assert_array_equal(labels, expected.target)


def test_digits_are_read_without_importing_scikit_learn():
    """Its import takes longer than Paddle's, in every start of the demo and of its tests."""
    code = "import sys; from image_classification.data import digits; digits.read_digits('val'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "PIL"} <= set(done.stdout.split()) and "sklearn" not in done.stdout.split()
