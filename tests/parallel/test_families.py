"""Every family, found by itself, in stages and in shares of two processes."""

import pytest

from tests.helpers.model_zoo import FOLDERS


@pytest.mark.check("checks_families:family:{topology}:{name}", size=2)
@pytest.mark.parametrize("name", [folder.name for folder in FOLDERS])
@pytest.mark.parametrize("topology", ["pp2", "tp2"])
def test_family_in_two_processes_has_the_gradients_of_one(results, topology, name):
    if "refused" in results[0]:
        text = f"{name} has no layer that processes can share"
        assert all("PARALLEL.TENSOR 2" in result["refused"] and text in result["refused"] for result in results)
        return
    # float32 sums in another order, through all layers
    assert results[0]["loss"] <= 1e-5
    assert results[0]["gradients"] <= 1e-5
    assert results[0]["factors"] == 0
