"""Every family, found by itself, in stages and in shares of two processes; the start is that of all checks."""

import pytest

from tests.helpers.model_zoo import FOLDERS

from .conftest import FAMILIES


@pytest.mark.parametrize("name", [folder.name for folder in FOLDERS])
@pytest.mark.parametrize("topology", FAMILIES)
def test_family_in_two_processes_has_the_gradients_of_one(ranks, topology, name):
    results = [result[f"checks_families:family:{topology}:{name}"] for result in ranks(2)]
    if "refused" in results[0]:
        text = f"{name} has no layer that processes can share"
        assert all("PARALLEL.TENSOR 2" in result["refused"] and text in result["refused"] for result in results)
        return
    # float32 sums in another order, through all layers
    assert results[0]["loss"] <= 1e-5
    assert results[0]["gradients"] <= 1e-5
    assert results[0]["factors"] == 0
