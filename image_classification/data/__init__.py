"""Images from bytes to batches: data sets, transforms, augmentation, worker processes. Imports no Paddle."""

from .build import build_eval_loader, build_eval_transform, build_train_loader, build_train_transform, check_loader
from .classes import settle_classes
from .mixing import build_batch_transform
from .sources import build_dataset

__all__ = [
    "build_batch_transform", "build_dataset", "build_eval_loader", "build_eval_transform", "build_train_loader",
    "build_train_transform", "check_loader", "settle_classes",
]  # fmt: skip
