"""Parts that several families are built of, compared with NumPy."""

import numpy as np
import paddle
import pytest

from image_classification.layers import stage_rates
from image_classification.transformer import bias_of_pairs, relative_position_index


@pytest.mark.parametrize("depths", [(1,), (2, 3, 1), (3, 3, 9, 3)])
def test_stochastic_depth_rises_evenly_over_all_stages(depths):
    rates = stage_rates(0.3, depths)
    assert [len(own) for own in rates] == list(depths)
    np.testing.assert_allclose(sum(rates, []), np.linspace(0.0, 0.3, sum(depths)), rtol=1e-15)


@pytest.mark.parametrize("window", [2, 3])
def test_bias_of_a_pair_is_the_row_of_where_one_token_lies_from_the_other(window):
    """Swin, equation 4: rows of the table are offsets of the query from the key, down and then across."""
    heads, side = 2, 2 * window - 1
    table = np.random.default_rng(0).standard_normal([side**2, heads]).astype("float32")
    index = paddle.to_tensor(relative_position_index(window).reshape(-1))
    found = bias_of_pairs(paddle.to_tensor(table), index).numpy()
    assert found.shape == (1, heads, window**2, window**2)
    for query, key in np.ndindex(window**2, window**2):
        down, across = np.subtract(divmod(query, window), divmod(key, window)) + window - 1
        np.testing.assert_array_equal(found[0, :, query, key], table[down * side + across])
