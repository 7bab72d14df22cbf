"""What happens beside the arithmetic of training: log lines, records, averages, checkpoints.

A hook is an object with a priority (lower runs first) and any of the methods of :class:`Hook`. Users add their own with
``TRAIN.HOOKS: ["my_module:MyHook"]``.
"""

from .averages import EmaHook
from .checkpoints import CheckpointHook
from .figures import FiguresHook
from .hook import Hook, load_hooks
from .log import LogHook, TotalBatchSizeHook
from .profiling import ProfilerHook
from .records import RecordHook, ReportHook

__all__ = [
    "CheckpointHook",
    "EmaHook",
    "FiguresHook",
    "Hook",
    "LogHook",
    "ProfilerHook",
    "RecordHook",
    "ReportHook",
    "TotalBatchSizeHook",
    "load_hooks",
]
