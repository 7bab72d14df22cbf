"""When a complete state is saved."""

import contextlib
import time

from .. import checkpoint
from ..runtime import UserError, get_logger
from ..saved_config import of_weights_alone
from ..weights import torch_tensors, write_weights
from .hook import Hook


class CheckpointHook(Hook):
    """Complete states every SAVE_FREQ epochs and SAVE_STEPS steps, at the end, where a stop was requested, and before
    a run ends because images cannot be read.

    One that cannot be written ends the run, on every process; the one before is intact.
    A run that continues in a new folder takes its best one along.
    Beside `best` lies `best_weights.safetensors`: what was evaluated, the model alone, as PyTorch has it, the names of
    its classes and how they were trained: the model's arguments and the preprocessing.
    """

    priority = 90

    def __init__(self, run, linears=frozenset()):
        self.linears = linears
        self.run = run
        self.weights = run.path / "best_weights.safetensors"
        self.store = checkpoint.Store(run.path, keep=1)
        self.path = None

    def before_train(self, trainer):
        self.store.keep = trainer.config.KEEP
        if trainer.resumed and trainer.parallel.is_main and "name" in trainer.resumed.run:
            run = trainer.resumed.run
            self.store.complete(trainer.resumed.path, run["name"], run["is_best"])
        if trainer.resumed and trainer.progress.best_top1 is not None:
            is_own = self.run.holds(trainer.resumed.path)  # another process may have read a copy from elsewhere
            if not trainer.parallel.gather(is_own)[0]:
                self._take_best_along(trainer)

    def _take_best_along(self, trainer):
        """Copy the best checkpoint from where the run was into its new folder; where it is gone, count anew."""
        path, progress = trainer.resumed.path, trainer.progress
        best, failure = self._find_best(path, progress) if trainer.parallel.is_main else None, None
        if best is not None:
            try:
                self._write_weights(best)
                self.store.save_best(best)
            except UserError as error:
                failure = error
            else:
                get_logger().info(
                    f"-resume: the best so far, top-1 {progress.best_top1:.4f}, is copied from {path.parent}"
                )
        self._fail_together(trainer, failure)
        if not trainer.parallel.gather(best is not None)[0]:
            get_logger().warning(
                f"-resume: {path.parent} has not the best checkpoint that {path.name} knows of, top-1 "
                f"{progress.best_top1:.4f}: the best is counted anew"
            )
            progress.best_top1 = None
            trainer.resumed.run.get("report", {})["best_top1"] = None  # it would be handed on

    def _find_best(self, path, progress):
        """Return the state of the best checkpoint of the run that another one belongs to; None: not beside it."""
        for candidate in (path.parent / "best.pdparams", path):
            with contextlib.suppress(UserError):  # not there, or damaged: the training itself needs it not
                state = checkpoint.load(candidate)
                is_best = state.get("run", {}).get("is_best", False)
                if is_best and state["progress"]["best_top1"] == progress.best_top1:
                    return state
        return None

    def after_step(self, trainer):
        due = trainer.config.SAVE_STEPS and trainer.progress.step % trainer.config.SAVE_STEPS == 0
        unfinished = trainer.progress.batch < len(trainer.train_loader)
        if trainer.stopping or (unfinished and due and trainer.last_result.applied):
            self._save(trainer, "step")

    def on_unreadable(self, trainer):
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
                self.run.renew(trainer.config)
                if is_best:  # before the commit: a run that is killed in between comes here again
                    self._write_weights(state)
                self.path = self.store.save(state, name, is_best)
                get_logger().info(f"saved {self.path} ({time.monotonic() - start:.1f} s)")
            except UserError as error:
                failure = error
        self._fail_together(trainer, failure)

    @staticmethod
    def _fail_together(trainer, failure):
        """Raise rank 0's failure, on every process, if there is one: none waits for another that is gone."""
        if trainer.parallel.any(failure is not None):
            raise failure or UserError("rank 0 could not write the checkpoint")

    def _write_weights(self, state):
        evaluated = checkpoint.to_arrays(state["ema"] or state["model"])
        config = of_weights_alone(state["config"], self.weights)
        write_weights(self.weights, torch_tensors(evaluated, self.linears), config)
