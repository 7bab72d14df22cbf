"""A Ctrl-C that comes while a run starts: never lost, never a traceback.

While Paddle is imported, a KeyboardInterrupt would become an ImportError; later it may be raised in a callback or a
destructor and be dropped there. So the handler remembers it, and the run asks at a few points of its start.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Handler of SIGINT that remembers; it raises KeyboardInterrupt only once `held` is False."""

    def __init__(self) -> None:
        self.seen = False
        self.held = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        if not self.held:
            raise KeyboardInterrupt


def hold_interrupts() -> None:
    """From now on a Ctrl-C waits for :func:`release_interrupts`."""
    signal.signal(signal.SIGINT, Interrupts())


def release_interrupts() -> None:
    """Raise KeyboardInterrupt if there was a Ctrl-C since :func:`hold_interrupts`, and from now on at once."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts):
        handler.held = False
    check_interrupts()


def interrupted() -> bool:
    """Return whether there was a Ctrl-C since :func:`hold_interrupts`, whoever swallowed it."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, Interrupts) and handler.seen


def check_interrupts() -> None:
    """Raise KeyboardInterrupt if there was a Ctrl-C since :func:`hold_interrupts`."""
    if interrupted():
        raise KeyboardInterrupt


@contextlib.contextmanager
def remembered_interrupts() -> Iterator[None]:
    """While this lasts a Ctrl-C raises KeyboardInterrupt as it does without, also where Paddle makes an error of it."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    hold_interrupts()
    release_interrupts()
    try:
        yield
    except Exception:
        check_interrupts()
        raise
    finally:
        if isinstance(signal.getsignal(signal.SIGINT), Interrupts):
            signal.signal(signal.SIGINT, signal.default_int_handler)
