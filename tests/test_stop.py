"""A run that a signal stops while a worker that reads images hangs, as one does on a lost network disk."""

import os
import signal
import threading
import time

import pytest

from image_classification.hooks import Hook
from image_classification.launch import stop_on_signal
from image_classification.runtime import UserError
from tests.helpers.small_runs import config_of, trainer_of

LATER = 1.0  # seconds; by then the training waits for the next batch


class HangAndStop(Hook):
    """After the first step stop the worker for good, and send this process a SIGTERM, at once or while it waits."""

    def __init__(self, later):
        self.later = later

    def after_step(self, trainer):
        if trainer.progress.step == 1:
            os.kill(trainer.train_loader._pool._processes[0].pid, signal.SIGSTOP)
            if not self.later:
                return os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(LATER, os.kill, (os.getpid(), signal.SIGTERM)).start()


@pytest.mark.parametrize("later", [False, True])
def test_run_that_a_signal_stops_waits_for_no_worker_that_hangs(later, monkeypatch):
    monkeypatch.setattr("image_classification.data.workers.STOP_SECONDS", 1.0)
    data = {"NUM_WORKERS": 1, "WORKER_TIMEOUT": 1000, "SYNTHETIC_IMAGES": 400}
    trainer = trainer_of(config_of(data=data), hooks=[HangAndStop(later)])
    start = time.monotonic()
    with stop_on_signal(trainer):
        if later:
            with pytest.raises(UserError, match=r"made no progress for 1 s \(the run is to stop\)"):
                trainer.fit()
        else:  # what has been read is trained, and nothing more is
            trainer.fit()
    assert trainer.stop_reason == "a signal" and 1 <= trainer.progress.step < 20
    assert trainer.eval_loader._is_to_stop  # by which it waits as the training's does
    assert time.monotonic() - start < 60  # seven seconds on an idle machine
