"""What hooks look at of a trainer, without one."""

import dataclasses
import math
import types

from image_classification.config import build_config


@dataclasses.dataclass
class StartingTrainer:
    """What hooks look at before the first step."""

    hooks: list
    config: object
    parallel: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(data_size=3))
    steps_per_epoch: int = 7
    progress: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(epoch=0))


@dataclasses.dataclass
class EpochTrainer:
    """What hooks look at after an epoch."""

    progress: object
    mean: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(loss=math.nan, top1=math.nan))
    evaluation: object = None
    precision: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(loss_scale=2.0))
    timer: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(images_per_second=3.0))
    parallel: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(is_main=True))
    config: object = dataclasses.field(default_factory=lambda: build_config([]))
    train_loader: object = ()
