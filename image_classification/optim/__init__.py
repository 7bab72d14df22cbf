"""Optimizers over named float32 tensors, learning rates by step, and the optimizer's state by parameter name."""

from .build import build_optimizer
from .schedule import build_schedule
from .state import check_optimizer_state, load_optimizer_state, optimizer_state

__all__ = [
    "build_optimizer",
    "build_schedule",
    "check_optimizer_state",
    "load_optimizer_state",
    "optimizer_state",
]
