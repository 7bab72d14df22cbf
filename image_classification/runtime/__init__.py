"""The process: errors for users, rank and threads, device, seeds, files, log. Imports nothing of the project.

Paddle is imported inside the functions that need it, because the number of threads must be set before.
"""

from .versions import refuse_unsupported

refuse_unsupported()  # before any other line of the project runs, so that no entry point or tool can forget it

from .commands import Parser, WithDefaults, close_names, command
from .devices import (
    cards_variable,
    device_of,
    expected_kind,
    failure_of,
    peak_memory_bytes,
    select_device,
    set_deterministic,
    visible,
)
from .errors import UserError, some_of
from .files import (
    anonymous_file,
    atomic_write,
    fsync_folder,
    refuse_existing,
    remove_leftovers,
    temporary_home,
    whole_folder,
    why_unwritable,
    writing_to,
)
from .interrupts import (
    check_interrupts,
    ending,
    hold_interrupts,
    ignore_interrupts,
    interrupted,
    release_interrupts,
)
from .kernels import has_kernel, kernel_registry
from .log import LOGGER_NAME, SILENT_SECONDS, get_logger, log_to_file, log_to_stderr, progress_bar, setup_logger
from .process import cores, prepare_process, rank, set_threads, tune_allocator, tune_mkl, world_size
from .seeds import rng_state, seed_everything, set_rng_state
from .streams import open_missing_streams, print_error

__all__ = [
    "LOGGER_NAME",
    "Parser",
    "SILENT_SECONDS",
    "UserError",
    "WithDefaults",
    "anonymous_file",
    "atomic_write",
    "cards_variable",
    "check_interrupts",
    "close_names",
    "command",
    "cores",
    "device_of",
    "ending",
    "expected_kind",
    "failure_of",
    "fsync_folder",
    "get_logger",
    "has_kernel",
    "hold_interrupts",
    "ignore_interrupts",
    "interrupted",
    "kernel_registry",
    "log_to_file",
    "log_to_stderr",
    "open_missing_streams",
    "peak_memory_bytes",
    "prepare_process",
    "print_error",
    "progress_bar",
    "rank",
    "refuse_existing",
    "release_interrupts",
    "remove_leftovers",
    "rng_state",
    "seed_everything",
    "select_device",
    "set_deterministic",
    "set_rng_state",
    "set_threads",
    "setup_logger",
    "some_of",
    "temporary_home",
    "tune_allocator",
    "tune_mkl",
    "visible",
    "whole_folder",
    "why_unwritable",
    "world_size",
    "writing_to",
]
