"""What a training step of the program asks of a device, counted: waits, copies, and numbers read too early."""

import itertools

import pytest

from tests.device.conftest import DEVICE
from tests.house.test_gpu_contract import ALL
from tests.house.test_gpu_training import batches, make_trainer


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_step_waits_twice_and_copies_its_batch_alone(board, mode, dtype):
    """It waits when the batch is copied, as memory that is not pinned must be, and when the finite check is read."""
    trainer = make_trainer(DEVICE, mode, dtype)
    steps = itertools.cycle(batches(2))
    for _ in range(3):
        trainer.train_step(steps, 1)
    expected = {"syncs": 2, "copies_to_host": 1, "copies_to_device": 2}
    for _ in range(3):
        _, *counts = board.count(lambda: trainer.train_step(steps, 1), *expected)
        assert dict(zip(expected, counts, strict=True)) == expected
