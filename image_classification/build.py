"""From a configuration to the objects of a run: loaders, model, precision, criterion, trainer."""

import dataclasses
import inspect

from . import amp, data
from .config import Config
from .ema import build_ema
from .freeze import freeze
from .hooks import (
    CheckpointHook,
    EmaHook,
    FiguresHook,
    Hook,
    LogHook,
    ProfilerHook,
    RecordHook,
    ReportHook,
    TotalBatchSizeHook,
    load_hooks,
)
from .losses import build_criterion
from .optim import build_optimizer, build_schedule, check_optimizer, check_schedule
from .runtime import UserError, seed_everything, select_device, set_deterministic
from .trainer import Trainer, steps_per_epoch
from .weights import linear_weights, load_pretrained, with_preprocessing


@dataclasses.dataclass
class Parts:
    """What a configuration builds; tools take the parts they need."""

    config: Config
    device: str
    parallel: object
    model: object
    precision: amp.Precision
    criterion: object
    train_loader: object
    eval_loader: object
    linears: frozenset = frozenset()  # names of linear layers' weights, for files in PyTorch's layout

    @property
    def class_names(self):
        """The name of each output of the model; a number where the data know no name."""
        model = self.config.MODEL
        return list(model.CLASS_NAMES) or [str(index) for index in range(model.NUM_CLASSES)]


def build_parts(config, build_model, parallel):
    """Return the :class:`Parts` of a configuration; nothing is written.

    Raises:
        UserError: whatever is wrong with the configuration, the data or the files that it names.
    """
    if not config.EVAL:  # before the data are read, which may take long
        check_optimizer(config.TRAIN)
        check_schedule(config.TRAIN)
    config = with_preprocessing(config)
    device = select_device(config.DEVICE)
    if config.DETERMINISTIC:
        set_deterministic()
    seed_everything(config.SEED)
    dataset = data.build_dataset(config, "val" if config.EVAL else "train")  # it decides about the classes
    config = data.settle_classes(config, dataset)
    place = parallel.data_rank, parallel.data_size
    eval_loader = data.build_eval_loader(config, *place, dataset if config.EVAL else None)
    train_loader = None if config.EVAL else data.build_train_loader(config, *place, dataset)
    precision = build_precision(config, device, parallel)
    model = make_model(config, build_model)
    if config.MODEL.PRETRAINED and not config.MODEL.RESUME:
        # a training run may have another number of classes than its weights
        load_pretrained(model, config.MODEL.PRETRAINED, replace_head=not config.EVAL)
    freeze(model, config.TRAIN.FREEZE)
    linears = linear_weights(model)
    model = parallel.shard_model(model, config.PARALLEL.SYNC_BN)
    try:
        model = precision.convert_model(model)
    except ValueError as error:
        raise UserError(f"AMP: {error}") from None
    # every rank built the same weights from the common seed; dropout and the like differ from here on
    seed_everything(config.SEED + parallel.data_rank)
    parallel.seed_dropout(config.SEED)
    criterion = build_criterion(config, train_loader.dataset if train_loader else None)
    return Parts(config, device, parallel, model, precision, criterion, train_loader, eval_loader, linears)


def build_precision(config, device, parallel):
    """Return the Precision of the AMP section."""
    try:
        return amp.build_precision(
            config.AMP.MODE,
            dtype=config.AMP.DTYPE,
            device=device,
            options=dict(config.AMP.OPTIONS),
            clip_grad_norm=config.TRAIN.GRAD_CLIP,
            reduction=parallel.reduction,
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"AMP: {error}") from None


def make_model(config, build_model):
    """Return the model in float32 with fresh weights."""
    arguments = dict(config.MODEL.ARGUMENTS)
    filled_in = {
        "num_classes": config.MODEL.NUM_CLASSES,
        "image_size": config.DATA.IMAGE_SIZE,
        "in_channels": config.DATA.IMAGE_CHANNELS,
    }
    known = inspect.signature(build_model).parameters
    arguments.update((name, value) for name, value in filled_in.items() if name in known)
    try:
        return build_model(**arguments)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"MODEL: {error}") from None


def build_trainer(parts):
    """Return the trainer with the hooks that write nothing."""
    config, model, precision = parts.config, parts.model, parts.precision
    named_params = precision.master_params(model)
    optimizer = build_optimizer(
        named_params, config.TRAIN, model.no_weight_decay(), parts.parallel.holders_of, model.layer_groups()
    )
    optimizer = parts.parallel.shard_optimizer(optimizer, named_params)
    global_batch_size = config.DATA.BATCH_SIZE * config.TRAIN.ACCUM_ITER * parts.parallel.data_size
    return Trainer(
        parts,
        optimizer=optimizer,
        schedule=build_schedule(config.TRAIN, steps_per_epoch(parts), global_batch_size),
        ema=build_ema(config.TRAIN, precision.model_state_dict(model)),
        hooks=[EmaHook(), TotalBatchSizeHook(), LogHook(), *load_hooks(config.TRAIN.HOOKS)],
    )


def folder_hooks(parts, folder, report):
    """Return the hooks that write to the run folder; the checkpoints are made on every process, the rest on one."""
    hooks: list[Hook] = [CheckpointHook(folder, parts.linears)]
    if parts.parallel.is_main:
        hooks += [RecordHook(folder), ReportHook(folder, report), FiguresHook(folder, parts.class_names)]
        if parts.config.TRAIN.PROFILE_STEP is not None:
            hooks.append(ProfilerHook(folder, parts.config.TRAIN.PROFILE_STEP))
    return hooks
