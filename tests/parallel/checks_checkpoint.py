"""States that a trainer saved under one topology and another trainer continues under another."""

import tempfile

import numpy

from image_classification import checkpoint
from image_classification.build import Parts
from image_classification.config import build_config
from image_classification.ema import build_ema
from image_classification.hooks import CheckpointHook, EmaHook, Hook
from image_classification.optim import build_schedule
from image_classification.parallel.single import SingleProcess
from image_classification.run_folder import RunFolder
from image_classification.trainer import Trainer, steps_per_epoch

from .checks_parity import BATCH, CLASSES, SEED, WINDOW, build, context_of, criterion, relative, share

BEFORE, AFTER = 3, 5


class Steps:
    """The loader's interface over this process's share of every step."""

    dataset = range((BEFORE + AFTER) * BATCH)

    def __init__(self, parallel, window):
        self.batches = [part for step in range(BEFORE + AFTER) for part in share(parallel, step, window)]

    def __len__(self):
        return len(self.batches)

    def set_epoch(self, epoch):
        pass

    def iterate(self, start_batch):
        return iter(self.batches[start_batch:])


class Watch(Hook):
    """Notes the loss of each step over all replicas, and ends the run with the last step, before its evaluation."""

    def __init__(self, last_step):
        self.last_step = last_step
        self.losses = []

    def before_step(self, trainer):
        self.sums = trainer.mean.flush().copy()
        if trainer.progress.step + 1 == self.last_step:
            trainer.request_stop("the test")

    def after_step(self, trainer):
        loss, _, count = trainer.mean.flush() - self.sums
        self.losses.append(trainer.parallel.sum([loss / count])[0] / trainer.parallel.data_size)


def make_trainer(mode, dtype, parallel, last_step, folder=None):
    """Return (trainer of all steps under a topology, its Watch); with a folder it saves where it ends."""
    model, precision, optimizer = build(mode, dtype, 0.5, parallel)
    parallel.seed_dropout(SEED)
    window = min(WINDOW, BATCH // parallel.data_size) if parallel.pipeline_schedule else 1
    config = build_config([("test", {
        "DATA": {"BATCH_SIZE": BATCH // parallel.data_size // window}, "MODEL": {"NUM_CLASSES": CLASSES},
        "TRAIN": {"ACCUM_ITER": window, "NUM_EPOCHS": 2, "BASE_LR": 1e-3, "WARMUP_EPOCHS": 0,
                  "LR_SCHEDULER": {"NAME": "constant"}, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.5},
    })])  # fmt: skip
    parts = Parts(config, "cpu", parallel, model, precision, criterion, Steps(parallel, window), None)
    watch = Watch(last_step)
    return Trainer(
        parts,
        optimizer=optimizer,
        schedule=build_schedule(config.TRAIN, steps_per_epoch(parts)),
        ema=build_ema(config.TRAIN, precision.model_state_dict(model), 100),
        hooks=[EmaHook(), watch, *([CheckpointHook(RunFolder(folder))] if folder else [])],
    ), watch


def move(before, after, mode="fp32", dtype=None):
    """Return how far a run that moved from topology `before` to `after` is from one process that made all steps.

    Relative differences of the losses after the move, and the largest difference of a weight of the average.
    """
    first, second = context_of(before), SingleProcess() if after == "one" else context_of(after)
    with tempfile.TemporaryDirectory() as own_folder:
        folder = first.gather(own_folder)[0]
        stopped, _ = make_trainer(mode, dtype, first, BEFORE, folder)
        stopped.fit()
        if not first.layout.is_whole:  # only the process that writes joins the model
            parts = stopped.state()
            assert first.is_main or parts["model"] == parts["optimizer"] == parts["ema"] == {}
        path = f"{folder}/latest.pdparams"
        moved, watch = make_trainer(mode, dtype, second, BEFORE + AFTER)
        moved.load_state(checkpoint.load(path), path)
        saved = checkpoint.load(path)
        first.gather(None)  # all have read it before the folder is removed
    if after == "one" and not first.is_main:
        return None
    moved.fit()
    state = checkpoint.to_arrays(moved.state())
    if not first.is_main:
        return None
    straight, expected = make_trainer(mode, dtype, SingleProcess(), BEFORE + AFTER)
    straight.fit()
    whole = checkpoint.to_arrays(straight.state())
    for part in ("model", "optimizer", "ema"):
        shapes = {name: value.shape for name, value in whole[part].items()}
        assert {name: value.shape for name, value in saved[part].items()} == shapes, part
        assert {name: value.shape for name, value in state[part].items()} == shapes, part
    assert (state["progress"]["step"], state["progress"]["skipped_steps"]) == (BEFORE + AFTER, 0)
    averages = [abs(numpy.asarray(state["ema"][name]) - value).max() for name, value in whole["ema"].items()]
    return [relative(watch.losses, expected.losses[BEFORE:]), float(max(averages))]
