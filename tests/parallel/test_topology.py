"""Degrees of a run: what is left out is filled in, and what cannot be is refused by key."""

import pytest

from image_classification.parallel.topology import resolve_degrees
from image_classification.runtime import UserError


def test_data_takes_what_the_others_leave():
    assert resolve_degrees(12, tensor=2, pipeline=3) == {"data": 2, "pipeline": 3, "sharding": 1, "sep": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 3}, "TENSOR 3 x PIPELINE 1 x SHARDING 1 = 3 does not divide the 8 processes"),
        ({"data": 2, "tensor": 2}, "= 4, but there are 8 processes"),
        ({"sharding": 2, "tensor": 2}, "PARALLEL.SHARDING: 2: not together with TENSOR 2 or PIPELINE 1"),
        ({"sharding": 4, "pipeline": 2}, "PARALLEL.SHARDING: 4: not together with TENSOR 1 or PIPELINE 2"),
    ],
)
def test_degrees_that_do_not_fit_are_named(degrees, message):
    with pytest.raises(UserError, match=message):
        resolve_degrees(8, **degrees)
