"""A user's hook that lets one process of a run stall or die at a chosen moment.

STALL="<rank>:<moment>:<signal's number>" in the environment says which; moments are step, evaluation, checkpoint.
"""

import os
import signal
import time

from image_classification.hooks import Hook


class Stall(Hook):
    """Its priority lies just before that of the checkpoint."""

    priority = 89

    def __init__(self):
        rank, self.moment, number = os.environ["STALL"].split(":")
        self.number = int(number)
        self.is_victim = rank == os.environ["PADDLE_TRAINER_ID"]

    def before_step(self, trainer):
        if trainer.progress.step == 2:
            self._come("step")

    def before_evaluation(self, trainer):
        self._come("evaluation")

    def after_epoch(self, trainer):
        if not trainer.parallel.is_main:  # which alone has files to write, and stalls there
            self._come("checkpoint")

    def on_save(self, trainer, run):
        self._come("checkpoint")

    def _come(self, moment):
        if self.is_victim and moment == self.moment:
            if self.number:
                os.kill(os.getpid(), signal.Signals(self.number))
            else:
                time.sleep(1000)  # alive, but its main thread never comes
