"""A Ctrl-C or SIGTERM that comes while a run starts or a tool works: never lost, never a traceback.

While Paddle is imported, a KeyboardInterrupt would become an ImportError; later it may be raised in a callback or a
destructor and be dropped there. So the handler remembers it, and the run asks at a few points of its start.
"""

import atexit
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_UNTOUCHED: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupts:
    """Handler of both signals that remembers the first one; it raises KeyboardInterrupt, which has the signal's number,
    only once `held` is False."""

    def __init__(self) -> None:
        self.seen: int | None = None
        self.held = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = self.seen or number
        if not self.held:
            raise KeyboardInterrupt(number)


def hold_interrupts() -> None:
    """From now on a Ctrl-C and a SIGTERM wait for :func:`release_interrupts`; when Python ends they change nothing."""
    _install(Interrupts(), *ENDINGS)
    atexit.register(_ignore_to_the_end)


def release_interrupts() -> None:
    """Raise KeyboardInterrupt if there was a signal since :func:`hold_interrupts`, and from now on at once."""
    handler = _installed()
    if handler is not None:
        handler.held = False
    check_interrupts()


def ignore_interrupts() -> None:
    """From now on a Ctrl-C and a SIGTERM change nothing, where :func:`hold_interrupts` was called: all is said."""
    handler = _installed()
    if handler is not None:
        handler.held = True


def _ignore_to_the_end() -> None:
    """While libraries shut down, behind the last of Python, its own handlers are none any more."""
    for number in ENDINGS:
        if isinstance(signal.getsignal(number), Interrupts):
            signal.signal(number, signal.SIG_IGN)


def interrupted() -> KeyboardInterrupt | None:
    """Return that of the first signal since :func:`hold_interrupts`, whoever swallowed it."""
    handler = _installed()
    return None if handler is None or handler.seen is None else KeyboardInterrupt(handler.seen)


def check_interrupts() -> None:
    """Raise KeyboardInterrupt if there was a signal since :func:`hold_interrupts`."""
    error = interrupted()
    if error is not None:
        raise error


def ending(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return the word for a process that ends by it, and its exit code, a shell's: 128 + the number of the signal."""
    number = error.args[0] if error.args else signal.SIGINT  # Python's own has no number
    return ENDINGS[number], 128 + number


@contextlib.contextmanager
def remembered_interrupts() -> Iterator[None]:
    """While this lasts Ctrl-C and SIGTERM raise KeyboardInterrupt, also where Paddle makes an error of it.

    A handler of somebody's own stays, and so does a signal that this process was started to ignore.
    """
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number, own in _UNTOUCHED.items() if in_main and signal.getsignal(number) is own]
    _install(Interrupts(), *numbers)
    release_interrupts()
    try:
        yield
    except Exception:
        check_interrupts()
        raise
    finally:
        for number in numbers:
            if isinstance(signal.getsignal(number), Interrupts):
                signal.signal(number, _UNTOUCHED[number])


def _install(handler: Interrupts, *numbers: signal.Signals) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _installed() -> Interrupts | None:
    handlers = (signal.getsignal(number) for number in ENDINGS)
    return next((handler for handler in handlers if isinstance(handler, Interrupts)), None)
