"""From a configuration to the objects of a run: loaders, model, precision, criterion, trainer."""

import dataclasses
import zlib

import paddle

from . import amp, data
from .config import Config
from .distillation import Distillation, Teacher
from .ema import build_ema
from .foreign import check_fits as check_resumed
from .freeze import freeze, names_to_freeze
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
from .optim import build_optimizer, build_schedule
from .parallel.agreement import check_agreement
from .runtime import UserError, get_logger, seed_everything, select_device, set_deterministic
from .saved_config import check_classes, differing_classes, warn_of_other_model
from .teacher import build_teacher, mode_of_teacher, read_teacher
from .trainer import Trainer, steps_per_epoch
from .weights import Pretrained, linear_weights, with_preprocessing
from .zoo import make_model, refuse_other_weights


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
    teacher: Teacher | None = None  # of a training with distillation
    linears: frozenset = frozenset()  # names of linear layers' weights, for files in PyTorch's layout
    weights: str | None = None  # pretrained ones that the model was filled with; the file, where a folder was named
    hooks: tuple[Hook, ...] = ()  # the user's own

    @property
    def class_names(self):
        """The name of each output of the model; a number where the data know no name."""
        model = self.config.MODEL
        return list(model.CLASS_NAMES) or [str(index) for index in range(model.NUM_CLASSES)]


def build_parts(config, build_model, parallel, resumed=None):
    """Return the :class:`Parts` of a configuration; nothing is written.

    Args:
        resumed: (file, content) of ``-resume``, to be looked at before the data are read, which may take long.

    Raises:
        UserError: whatever is wrong with the configuration, the data or the files that it names.
    """
    config = with_preprocessing(config)
    pretrained = None
    if config.MODEL.PRETRAINED and not config.MODEL.RESUME:
        refuse_other_weights(config, build_model, config.MODEL.PRETRAINED)
        pretrained = Pretrained.read(config.MODEL.PRETRAINED)
    device = select_device(config.DEVICE)
    precision = build_precision(config, device, parallel)
    hooks, teacher = _try(config, build_model, parallel, precision, pretrained, resumed)
    if config.DETERMINISTIC:
        set_deterministic()
    seed_everything(config.SEED)
    dataset = data.build_dataset(config, "val" if config.EVAL else "train")  # it decides about the classes
    config = data.settle_classes(config, dataset)
    place = parallel.data_rank, parallel.data_size
    eval_loader = data.build_eval_loader(config, *place, dataset if config.EVAL else None)
    train_loader = None if config.EVAL else data.build_train_loader(config, *place, dataset)
    check_agreement(parallel, config, _images_of({"training": train_loader, "evaluation": eval_loader}))
    model = make_model(config, build_model)
    weights = None
    if pretrained:
        # a training run may have another number of classes than its weights
        loaded, pretrained = pretrained.load(model, replace_head=not config.EVAL), None  # frees the file's arrays
        weights = loaded.source
        _look_at_origin(loaded, config)
    model.separate_heads = config.TRAIN.DISTILLATION_TYPE != "none"
    freeze(model, config.TRAIN.FREEZE)
    linears = linear_weights(model)
    model = precision.convert_model(parallel.shard_model(model, config.PARALLEL.SYNC_BN))
    if teacher is not None:
        mode = build_precision(dataclasses.replace(config, AMP=mode_of_teacher(config)), device, parallel)
        teacher = build_teacher(teacher, config, mode, parallel)
    # every rank built the same weights from the common seed; dropout and the like differ from here on
    seed_everything(config.SEED + parallel.data_rank)
    parallel.seed_dropout(config.SEED)
    criterion = build_criterion(config, train_loader.dataset if train_loader else None)
    if teacher is not None:
        train = config.TRAIN
        criterion = Distillation(criterion, train.DISTILLATION_TYPE, train.DISTILLATION_ALPHA, train.DISTILLATION_TAU)
    loaders = train_loader, eval_loader
    return Parts(config, device, parallel, model, precision, criterion, *loaders, teacher, linears, weights, hooks)


def _try(config, build_model, parallel, precision, pretrained, resumed):
    """Return (the user's hooks, the content of the teacher or None) after what else may be wrong with a configuration
    alone: reading the data may take long.

    Raises:
        UserError: the model, its weights, how it is shared or stored, TRAIN.FREEZE, HOOKS, the preprocessing, the
            loader or the teacher cannot be as they are configured.
    """
    with paddle.LazyGuard():  # shapes only, no memory
        model = make_model(config, build_model)
    if pretrained:
        # the data may yet decide about the classes
        pretrained.fit(model, replace_head=not (config.EVAL and config.MODEL.CLASSES_GIVEN))
    parameters = dict(model.named_parameters())
    for name in names_to_freeze(model, config.TRAIN.FREEZE):
        parameters[name].stop_gradient = True
    if resumed:
        check_resumed(config, model, *resumed)
    parallel.check_model(model)
    try:
        precision.check_model(model)
    except ValueError as error:
        raise UserError(f"AMP: {error}") from None
    data.check_loader(config)
    data.build_eval_transform(config.DATA)
    if config.EVAL:
        return (), None
    data.build_train_transform(config)
    if config.MODEL.CLASSES_GIVEN:
        build_criterion(config)
    return tuple(load_hooks(config.TRAIN.HOOKS)), read_teacher(config)


def _images_of(loaders):
    """Return {what of the images all processes must have alike: a number} of {task: its loader or None}."""
    found = {}
    for task, dataset in ((task, loader.dataset) for task, loader in loaders.items() if loader is not None):
        found[f"{task} images"] = len(dataset)
        if dataset.labels is not None:  # in another order some images would come twice and others never
            found[f"the checksum of the {task} images' labels"] = zlib.crc32(dataset.labels.tobytes())
    return found


def _look_at_origin(loaded, config):
    """Refuse to evaluate weights by labels of other classes than theirs; say so where they learn on with their head,
    and where the model or its images are not those that they were trained with."""
    where = f"-pretrained: {loaded.source}"
    warn_of_other_model(loaded.config, config, where)
    if config.EVAL:
        check_classes(loaded.config, config, where)
    elif not loaded.replaced and (difference := differing_classes(loaded.config, config, where)):
        get_logger().warning(f"{where}: {difference}: the head starts as that of other classes")


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


def build_trainer(parts):
    """Return the trainer with the hooks that write nothing."""
    config, model, precision = parts.config, parts.model, parts.precision
    named_params = precision.master_params(model)
    optimizer = build_optimizer(
        named_params, config.TRAIN, model.no_weight_decay(), parts.parallel.holders_of, model.layer_groups()
    )
    optimizer = parts.parallel.shard_optimizer(optimizer, named_params)
    window, stages = config.TRAIN.ACCUM_ITER, config.PARALLEL.PIPELINE
    if (batches := len(parts.train_loader)) < window:
        get_logger().warning(f"TRAIN.ACCUM_ITER {window}: an epoch, so a step, has {batches} batches")
    if window < stages:
        idle = (stages - 1) / (window + stages - 1)
        get_logger().warning(f"TRAIN.ACCUM_ITER {window}: fewer micro-batches than the {stages} stages of "
                             f"PARALLEL.PIPELINE, each of which waits {idle:.0%} of a step")  # fmt: skip
    steps = steps_per_epoch(parts)
    global_batch_size = config.DATA.BATCH_SIZE * window * parts.parallel.data_size
    return Trainer(
        parts,
        optimizer=optimizer,
        schedule=build_schedule(config.TRAIN, steps, global_batch_size),
        ema=build_ema(config.TRAIN, precision.model_state_dict(model), config.TRAIN.NUM_EPOCHS * steps),
        hooks=[EmaHook(), TotalBatchSizeHook(), LogHook(), *parts.hooks],
    )


def folder_hooks(parts, folder, report):
    """Return the hooks that write to the run folder; the checkpoints are made on every process, the rest on one."""
    hooks: list[Hook] = [CheckpointHook(folder, parts.linears)]
    if parts.parallel.is_main:
        hooks += [RecordHook(folder), ReportHook(folder, report), FiguresHook(folder, parts.class_names)]
        if parts.config.TRAIN.PROFILE_STEP is not None:
            hooks.append(ProfilerHook(folder, parts.config.TRAIN.PROFILE_STEP))
    return hooks
