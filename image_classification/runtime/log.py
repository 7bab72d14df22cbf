"""What a run says: the logger, its files, progress bars."""

import contextlib
import io
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

from .errors import UserError
from .streams import print_error, write_line

LOGGER_NAME = "image_classification"
SILENT_SECONDS = 10.0  # after so long without a word a person wonders whether the run still lives


def get_logger() -> logging.Logger:
    """Return the logger of the project; :func:`setup_logger` gives it its handlers."""
    return logging.getLogger(LOGGER_NAME)


def setup_logger(folder: str | os.PathLike[str] | None = None, process_rank: int = 0) -> logging.Logger:
    """Log to the terminal on rank 0 and, with a folder, to ``log.txt`` (rank 0) or ``log_<rank>.txt``.

    A file begins with what was said since the call without one.
    """
    logger = get_logger()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    said = [record for handler in logger.handlers if isinstance(handler, _Backlog) for record in handler.records]
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    formatter = _Formatter("%(asctime)s %(message)s", "%m%d %I:%M:%S %p")
    handlers: list[logging.Handler] = [_TerminalHandler()] if process_rank == 0 else []
    if folder is None:
        handlers.append(_Backlog())
    else:
        name = "log.txt" if process_rank == 0 else f"log_{process_rank}.txt"
        handlers.append(_LogFile(Path(folder) / name))
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    _quieten_libraries()
    logging.captureWarnings(True)  # else they would pass the file by
    of_warnings = logging.getLogger("py.warnings")
    of_warnings.handlers, of_warnings.propagate = list(handlers), False
    if folder is not None:
        for record in said:
            handlers[-1].handle(record)
    return logger


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log to standard error, unless :func:`setup_logger` said where to: for commands whose output is something else."""
    logger = get_logger()
    _quieten_libraries()
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(_Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    if isinstance(logger.handlers[0], _StderrHandler):
        logger.setLevel(level)


def _quieten_libraries() -> None:
    """Paddle lets all loggers write to standard error: matplotlib says in each first run that it looked for fonts."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)


def log_to_file(text: str) -> None:
    """Write to the run's log file alone what the terminal shows by other means: the last error, a traceback."""
    record = logging.LogRecord(LOGGER_NAME, logging.ERROR, __file__, 0, text, None, None)
    for handler in get_logger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


class _Formatter(logging.Formatter):
    """Marks a warning; an error says itself that it is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING:
            record.message = f"warning: {record.message}"
        return super().formatMessage(record)


class _Backlog(logging.Handler):
    """Keeps what is said before the run has a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class _TerminalHandler(logging.Handler):
    """Writes above a progress bar instead of through it, to whatever standard output is at that moment.

    One that is lost, by a full disk or a closed pipe, ends no run: the log files and one line on stderr say so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.lost:
            return
        try:
            write_line(self.format(record))
        except OSError as error:
            self.lost = True
            warning = f"standard output: cannot be written: {error.strerror or error}; the run goes on"
            print_error(f"warning: {warning}")
            get_logger().warning(warning)


class _StderrHandler(logging.Handler):
    """Writes above a progress bar, to whatever standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with contextlib.suppress(OSError):
            tqdm.write(self.format(record), file=sys.stderr)


class _LogFile(logging.FileHandler):
    """A log file; where it cannot be written, one line on stderr says so and the run goes on."""

    def __init__(self, path: Path) -> None:
        self.complained = False
        try:
            super().__init__(path, encoding="utf-8", errors="backslashreplace")  # a file's name may be any bytes
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.complained:
            self.complained = True
            print_error(f"warning: {self.baseFilename}: cannot be written: {error.strerror or error}")


def progress_bar(
    total: int, description: str, unit: str, is_main: bool = True, initial: int = 0, lines: bool = True
) -> "tqdm":
    """Return a tqdm bar with ETA for the main process; it shows itself on a terminal, and not for short work.

    Elsewhere it is a plain line every SILENT_SECONDS, in the log or, where there is none, on standard error; with
    `lines` False it is nothing.
    """
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread of its own
        _time = property(lambda self: time.monotonic, lambda self, of_day: None)  # tqdm would take the time of day

    class Lines(Bar):
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            text = str(self) if msg is None else msg
            if not text:  # the end
                return
            if get_logger().handlers:
                get_logger().info(text)
            else:
                print_error(text)

    # miniters: a look at the clock each time; from quick ones tqdm would learn to look rarely, and be late at slow ones
    counts: dict[str, Any] = {"total": total, "initial": initial, "desc": description, "unit": unit, "miniters": 1}
    if is_main and lines and not sys.stderr.isatty():
        return Lines(
            **counts, leave=False, delay=SILENT_SECONDS, mininterval=SILENT_SECONDS,
            file=io.StringIO(),  # no terminal, so that tqdm.write has nothing to clear and to draw again
            bar_format="{desc}: {n_fmt} of {total_fmt} {unit}, {rate_fmt}, eta {remaining}",
        )  # fmt: skip
    is_shown = is_main and sys.stderr.isatty()
    return Bar(**counts, leave=False, delay=0.5, disable=not is_shown, dynamic_ncols=True, file=sys.stderr)
