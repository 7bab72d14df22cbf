"""What the smallest model of each family computes is what the file says."""

import numpy as np
import pytest

from tests.helpers.golden_logits import logits_of, read
from tests.helpers.model_zoo import FOLDERS

# Of the largest logit. Our own float32 kernels and MKL's for another processor, which add in other orders, are up to
# 1.7e-6 away; ten times that.
TOLERANCE = 2e-5


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_logits_of_the_smallest_model_are_the_golden_ones(folder):
    golden, logits = read()[folder.name], logits_of(folder)
    assert np.ptp(golden) > 0.01 * np.abs(golden).max() and np.isfinite(golden).all()
    assert np.abs(logits - golden).max() <= TOLERANCE * np.abs(golden).max()
