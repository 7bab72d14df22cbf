"""When a complete state is saved."""

import time

from .. import checkpoint
from ..runtime import get_logger
from ..weights import torch_tensors, write_weights
from .hook import Hook


class CheckpointHook(Hook):
    """Complete states every SAVE_FREQ epochs and SAVE_STEPS steps, at the end, and where a stop was requested.

    Beside `best` lies `best_weights.safetensors`: what was evaluated, the model alone, as PyTorch has it.
    """

    priority = 90

    def __init__(self, run, linears=frozenset()):
        self.linears = linears
        self.weights = run.path / "best_weights.safetensors"
        self.store = checkpoint.Store(run.path, keep=1)
        self.saved_best = False
        self.path = None

    def before_train(self, trainer):
        self.store.keep = trainer.config.KEEP

    def after_step(self, trainer):
        due = trainer.config.SAVE_STEPS and trainer.progress.step % trainer.config.SAVE_STEPS == 0
        unfinished = trainer.progress.batch < len(trainer.train_loader)
        if trainer.stopping or (unfinished and due and trainer.last_result.applied):
            self._save(trainer, "step")

    def after_epoch(self, trainer):
        epoch, config = trainer.progress.epoch, trainer.config
        is_best = bool(trainer.evaluation and trainer.evaluation["is_best"])
        is_last = epoch == config.TRAIN.NUM_EPOCHS
        if is_best or is_last or trainer.stopping or epoch % config.SAVE_FREQ == 0:
            self._save(trainer, f"epoch_{epoch:04d}", is_best)

    def _save(self, trainer, name, is_best=False):
        state = trainer.state()  # every process takes part, one writes
        if trainer.parallel.is_main:
            start = time.time()
            self.path = self.store.save(state, name, is_best)
            if is_best:
                evaluated = checkpoint.to_arrays(state["ema"] or state["model"])
                write_weights(self.weights, torch_tensors(evaluated, self.linears))
            get_logger().info(f"saved {self.path} ({time.time() - start:.1f} s)")
        trainer.parallel.barrier()
