"""Positions for another image or window size equal timm's."""

import numpy as np
import pytest

from image_classification.model import PositionEmbedding, RelativePositions
from image_classification.weights.position import resize_positions

pytestmark = pytest.mark.peers

TOLERANCE = 1e-5  # timm interpolates in float32


@pytest.mark.parametrize(
    ("old", "grid", "others"),
    [(14, (24, 24), 1), (24, (14, 14), 2), (14, (7, 9), 0), (37, (16, 16), 5), (7, (12, 12), 0), (1, (4, 4), 1)],
)
@pytest.mark.parametrize("kind", [PositionEmbedding, RelativePositions])
def test_positions_equal_timms(peers, tmp_path, kind, old, grid, others):
    relative = kind is RelativePositions
    places = (2 * old - 1) ** 2 if relative else old**2
    before = np.random.default_rng(0).standard_normal((places + others, 4)).astype(np.float32)
    before = before if relative else before[None]
    np.save(tmp_path / "before.npy", before)
    peers.ask(action="positions", grid=grid, others=others, folder=tmp_path)
    found = resize_positions(before, kind(grid, others))
    np.testing.assert_allclose(found, np.load(tmp_path / "after.npy"), atol=TOLERANCE)
