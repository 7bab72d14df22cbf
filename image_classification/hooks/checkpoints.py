"""When a complete state is saved."""

import time

from .. import checkpoint
from ..runtime import UserError, get_logger
from ..weights import torch_tensors, write_weights
from .hook import Hook


class CheckpointHook(Hook):
    """Complete states every SAVE_FREQ epochs and SAVE_STEPS steps, at the end, where a stop was requested, and before
    a run ends because no image of its evaluation can be read.

    One that cannot be written ends the run, on every process; the one before is intact.
    Beside `best` lies `best_weights.safetensors`: what was evaluated, the model alone, as PyTorch has it.
    """

    priority = 90

    def __init__(self, run, linears=frozenset()):
        self.linears = linears
        self.weights = run.path / "best_weights.safetensors"
        self.store = checkpoint.Store(run.path, keep=1)
        self.path = None

    def before_train(self, trainer):
        self.store.keep = trainer.config.KEEP
        if trainer.resumed and trainer.parallel.is_main and "name" in trainer.resumed.run:
            run = trainer.resumed.run
            self.store.complete(trainer.resumed.path, run["name"], run["is_best"])

    def after_step(self, trainer):
        due = trainer.config.SAVE_STEPS and trainer.progress.step % trainer.config.SAVE_STEPS == 0
        unfinished = trainer.progress.batch < len(trainer.train_loader)
        if trainer.stopping or (unfinished and due and trainer.last_result.applied):
            self._save(trainer, "step")

    def on_failed_evaluation(self, trainer):
        self._save(trainer, "step")

    def after_epoch(self, trainer):
        epoch, config = trainer.progress.epoch, trainer.config
        is_best = bool(trainer.evaluation and trainer.evaluation["is_best"])
        is_last = epoch == config.TRAIN.NUM_EPOCHS
        if is_best or is_last or trainer.stopping or epoch % config.SAVE_FREQ == 0:
            self._save(trainer, f"epoch_{epoch:04d}", is_best)

    def _save(self, trainer, name, is_best=False):
        state, failure = trainer.state(), None  # every process takes part, one writes
        if trainer.parallel.is_main:
            state["run"] |= {"name": name, "is_best": is_best}
            start = time.monotonic()
            try:
                if is_best:  # before the commit: a run that is killed in between comes here again
                    evaluated = checkpoint.to_arrays(state["ema"] or state["model"])
                    write_weights(self.weights, torch_tensors(evaluated, self.linears))
                self.path = self.store.save(state, name, is_best)
                get_logger().info(f"saved {self.path} ({time.monotonic() - start:.1f} s)")
            except UserError as error:
                failure = error
        if trainer.parallel.any(failure is not None):
            raise failure or UserError("rank 0 could not write the checkpoint")
