"""What one file may cost, enforced by the operating system in a process of its own."""

import contextlib
import os
import resource
import signal

SECONDS = 5  # of processor time: a busy machine is no fault
PATIENCE = 120  # seconds by the clock: who waits for a FIFO uses no processor time
MEGABYTES = 256  # beside twice the file


def address_space():
    """Return the bytes of address space that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def limited(size, megabytes=MEGABYTES):
    """Let the process have twice `size` bytes and some megabytes more; one that takes too long dies of a signal."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + 2 * size + (megabytes << 20), hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
