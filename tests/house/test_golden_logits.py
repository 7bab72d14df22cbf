"""What each digits-sized model and each of its forms computes is what the file says."""

import numpy as np
import pytest

from tests.helpers.golden_logits import CASES, logits_of, read

# Of the largest logit. Our own float32 kernels and MKL's for another processor, which add in other orders, are up to
# 1.7e-6 away; ten times that.
TOLERANCE = 2e-5


@pytest.mark.parametrize("case", CASES)
def test_logits_of_the_smallest_models_are_the_golden_ones(case):
    golden, logits = read()[case], logits_of(case)
    assert np.ptp(golden) > 0.01 * np.abs(golden).max() and np.isfinite(golden).all()
    assert np.abs(logits - golden).max() <= TOLERANCE * np.abs(golden).max()
