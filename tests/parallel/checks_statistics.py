"""Running statistics of replicas that see other images: what is evaluated, saved and trained on with is one state."""

import json
import tempfile
from pathlib import Path

import numpy
from paddle import nn

from image_classification import checkpoint
from image_classification.hooks import CheckpointHook, Hook, RecordHook
from image_classification.parallel.protocol import running_statistics
from image_classification.parallel.single import SingleProcess
from image_classification.ResNet.resnet import build_model as build_resnet
from image_classification.run_folder import RunFolder
from image_classification.ViT.vit import build_model as build_vit
from tests.helpers.small_runs import build_net, build_plain_net, config_of, trainer_of

from .checks_parity import TINY_RESNET, TINY_VIT, context_of


class Keep(Hook):
    """Keeps the checkpoint of the first epoch, on every process, as soon as it is written."""

    priority = 91

    def __init__(self, path):
        self.path = path

    def after_epoch(self, trainer):
        if trainer.progress.epoch == 1:
            self.saved = checkpoint.load(self.path)


def means(topology):
    """Return running mean, weight and frozen weight of a BatchNorm after each replica had its own mean and weight."""
    context = context_of(topology)
    layer = nn.BatchNorm2D(2)
    layer._mean.set_value(numpy.float32([1, 10]) * (context.data.index + 1))
    layer.weight.set_value(numpy.float32([5, 5]) * (context.data.index + 1))
    layer.bias.set_value(numpy.float32([0.1, 1 / 7]))
    layer._variance.set_value(numpy.float32([0.1, 1 / 7]))
    layer.weight.stop_gradient = layer.bias.stop_gradient = True
    context.average(list(running_statistics(layer).values()))
    same = [getattr(layer, name).numpy().tobytes() == numpy.float32([0.1, 1 / 7]).tobytes()
            for name in ("bias", "_variance")]  # fmt: skip
    return layer._mean.tolist(), layer.weight.tolist(), same


def build_deep(num_classes: int = 4, in_channels: int = 3):
    """Return a model that has blocks enough for a pipeline."""
    return build_resnet(**TINY_RESNET | {"num_classes": num_classes, "in_channels": in_channels})


def _trainer(context, average, every, hooks=(), mode=None, frozen=("conv*",), sync_bn=False):
    train = {"NUM_EPOCHS": 3, "MODEL_EMA": average, "MODEL_EMA_DECAY": 0.9, "FREEZE": list(frozen)}
    data = {"BATCH_SIZE": 4 // context.data_size, "SYNTHETIC_IMAGES": 24}
    amp = {"MODE": mode, "DTYPE": "bfloat16"} if mode else {}
    config = config_of(data, train, amp, VALIDATE_FREQ=every, SAVE_FREQ=1, PARALLEL={"SYNC_BN": sync_bn})
    return trainer_of(config, build_deep if "pipeline 2" in context.describe() else build_net, context, hooks)


def train_lines(topology):
    """Return step, loss, top-1 and images of a step of each train line of a run and of one process with whole batches.

    A third run of the same topology stopped within the second epoch and was resumed: its lines, too.
    """
    context = context_of(topology)

    def lines(parallel, folder, stop=(), resume=None):
        run = RunFolder(folder)
        hooks = [CheckpointHook(run), *([RecordHook(run)] if parallel.is_main else []), *stop]
        build = build_shared if "tp" in topology else build_plain_net
        trainer = trainer_of(config_for(parallel), build, parallel, hooks)
        if resume:
            trainer.load_state(checkpoint.load(resume), Path(resume))
        trainer.fit()
        if parallel.is_main:
            found = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
            images = trainer.timer.last["images"]
            return [[line["step"], line["loss"], line["top1"], images] for line in found if line["kind"] == "train"]

    with tempfile.TemporaryDirectory() as own:
        folder = Path(context.gather(own)[0])
        together = lines(context, folder / "together")
        lines(context, folder / "stopped", [Stop(9)])
        resumed = lines(context, folder / "stopped", resume=folder / "stopped" / "latest.pdparams")
        alone = lines(SingleProcess(), folder / "alone") if context.is_main else None
        context.gather(None)
    return together, resumed, alone


class Stop(Hook):
    """Requests the end of a run, on one process, before a step."""

    def __init__(self, step):
        self.step = step

    def before_step(self, trainer):
        if trainer.progress.step + 1 == self.step and not trainer.parallel.is_main:
            trainer.request_stop("the test")


def config_for(parallel):
    """Return a configuration of six steps an epoch whose batches are the same on any number of replicas."""
    data = {"BATCH_SIZE": 4 // parallel.data_size, "SYNTHETIC_IMAGES": 24}
    return config_of(data, {"NUM_EPOCHS": 2, "BASE_LR": 1e-3}, VALIDATE_FREQ=9, REPORT_FREQ=2, SAVE_STEPS=5)


def build_shared(num_classes: int = 4, in_channels: int = 3):
    """Return a model with layers that processes share."""
    return build_vit(**TINY_VIT | {"num_classes": num_classes, "in_channels": in_channels, "image_size": 8, "depth": 1})


def evaluated_and_saved(topology, average):
    """Return the loss of a run's last evaluation, and that of its checkpoint's weights in one process."""
    context = context_of(topology)
    with tempfile.TemporaryDirectory() as own:
        folder = context.gather(own)[0]
        trainer = _trainer(context, average == "ema", 1, [CheckpointHook(RunFolder(folder))])
        trainer.fit()
        saved = checkpoint.load(f"{folder}/latest.pdparams")
        context.gather(None)
    alone = _trainer(SingleProcess(), False, 1)
    alone.precision.load_model_state_dict(alone.model, saved["ema"] or saved["model"])
    alone.progress.epoch = 3
    alone.fit()
    return trainer.evaluation["loss"], alone.evaluation["loss"]


def _tensors(trainer):
    """Return the bytes of what this process holds, and of what it would save."""
    parts = {"own": trainer.model.state_dict(), "own average": trainer.ema.state_dict()}
    parts |= {part: value for part, value in trainer.state().items() if part in ("model", "ema", "optimizer")}
    return {f"{part} {name}": numpy.asarray(value).tobytes()
            for part, values in parts.items() for name, value in checkpoint.to_arrays(values).items()}  # fmt: skip


def resumed(topology, mode):
    """Return the tensors in which a run differs from one that went on from its first epoch's checkpoint."""
    context = context_of(topology)
    with tempfile.TemporaryDirectory() as own:
        folder = context.gather(own)[0]
        keep = Keep(f"{folder}/latest.pdparams")
        straight = _trainer(context, True, 9, [CheckpointHook(RunFolder(folder)), keep], mode)
        straight.fit()
        expected = _tensors(straight)
        again = _trainer(context, True, 9, [CheckpointHook(RunFolder(folder))], mode)
        again.load_state(keep.saved, keep.path)
        again.fit()
        got = _tensors(again)
        context.gather(None)
    return [name for name, value in expected.items() if value != got[name]]


def frozen(topology, kind=""):
    """Return which frozen tensors of a model, and of its average, a training of its head moved."""
    context = context_of(topology)
    trainer = _trainer(context, True, 1, frozen=["!fc.*"], sync_bn=kind == "sync_bn")
    before = checkpoint.to_arrays(trainer.ema.state_dict())
    trainer.fit()
    after = {"model": trainer.model.state_dict(), "ema": trainer.ema.state_dict()}
    return [f"{part}.{name}" for part, state in after.items() for name, value in checkpoint.to_arrays(state).items()
            if not name.startswith("fc.") and value.tobytes() != before[name].tobytes()]  # fmt: skip
