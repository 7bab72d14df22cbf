"""Images from bytes to batches: data sets, transforms, augmentation, worker processes. Imports no Paddle."""

from .build import build_eval_loader, build_train_loader
from .sources import build_dataset

__all__ = ["build_dataset", "build_eval_loader", "build_train_loader"]
