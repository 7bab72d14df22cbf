"""Shared set-up of all tests: the repository root is importable, each worker uses one thread."""

import gc
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

# Two pytest workers on two cores: one thread each is faster than four threads on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("GLOG_minloglevel", "2")

# A job in the background of a shell ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
gc.disable()  # modules and collected tests stay: collections of garbage need not look through them, now or later


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _numbers_of_its_own():
    """A test draws the same numbers whichever ran before it in this process."""
    if "paddle" in sys.modules:
        sys.modules["paddle"].seed(0)


@pytest.fixture(autouse=True)
def _logger_as_it_was():
    """A test that runs a whole training in this process leaves the project's logger as it found it; caplog, which
    listens at the root, hears it."""
    logger = logging.getLogger("image_classification")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    logger.propagate = True
    yield
    logging.captureWarnings(False)
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _signals_as_they_were():
    """A test that lets a run take Ctrl-C and SIGTERM leaves them to whom they belonged."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
