"""The moving average of the weights."""

from .hook import Hook


class EmaHook(Hook):
    """Moves the averaged weights, on real steps only."""

    priority = 0

    def after_update(self, trainer):
        trainer.ema.update(trainer.precision.model_state_dict(trainer.model))
