"""Every family, found by itself, in stages and in shares of two processes."""

import pytest

from tests.helpers.model_zoo import digits_cases


@pytest.mark.check("checks_families:family:{topology}:{path.stem}", size=2)
@pytest.mark.parametrize("path", digits_cases())
@pytest.mark.parametrize("topology", ["pp2", "tp2"])
def test_family_in_two_processes_has_the_gradients_of_one(results, topology, path):
    if "refused" in results[0]:
        text = "has no layer that processes can share"
        assert all("PARALLEL.TENSOR 2" in result["refused"] and text in result["refused"] for result in results)
        return
    # float32 sums in another order, through all layers
    assert results[0]["loss"] <= 1e-5
    assert results[0]["gradients"] <= 1e-5
    assert results[0]["factors"] == 0
