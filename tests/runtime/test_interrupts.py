"""A Ctrl-C or SIGTERM while a run starts is remembered, whoever swallows the exception; a tool ends in one line."""

import os
import signal
import subprocess
import sys

import pytest

from image_classification.runtime import check_interrupts, ending, hold_interrupts, interrupted, release_interrupts
from tests.helpers.model_zoo import ROOT

TOOL = """
import os, subprocess, sys
from image_classification.runtime import command, prepare_process

class Import:
    def find_spec(self, name, *rest):
        if name == "paddle.nn":  # Paddle has its handlers by then
            os.kill(os.getpid(), int(sys.argv[1]))

@command
def main(arguments):
    if arguments[1] == "import":
        sys.meta_path.insert(0, Import())
    prepare_process()
    subprocess.run([sys.executable, "-c", f"import os, time; os.kill({os.getpid()}, {arguments[0]}); time.sleep(600)"])

sys.exit(main())
"""
ENDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.__cxa_atexit(getattr(libc, "raise"), ctypes.c_void_p(int(sys.argv[1])), None)  # behind all of Python's end
from image_classification.runtime import hold_interrupts, release_interrupts

hold_interrupts()
release_interrupts()
sys.exit(3)
"""
BOTH = pytest.mark.parametrize(
    ("number", "end"), [(signal.SIGINT, ("interrupted", 130)), (signal.SIGTERM, ("terminated", 143))]
)


def press(number):
    os.kill(os.getpid(), number)


@BOTH
def test_held_interrupt_comes_with_the_release(number, end):
    hold_interrupts()
    press(number)
    assert ending(interrupted()) == end
    with pytest.raises(KeyboardInterrupt) as raised:
        release_interrupts()
    assert ending(raised.value) == end


@BOTH
def test_released_interrupt_comes_at_once_and_again_where_it_was_swallowed(number, end):
    hold_interrupts()
    release_interrupts()
    check_interrupts()
    try:
        press(number)
    except BaseException:
        swallowed = True
    assert swallowed
    with pytest.raises(KeyboardInterrupt) as raised:
        check_interrupts()
    assert ending(raised.value) == end


def test_first_of_two_held_signals_is_the_one_that_ends():
    hold_interrupts()
    press(signal.SIGTERM)
    press(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised:
        release_interrupts()
    assert ending(raised.value) == ("terminated", 143)


@BOTH
def test_signal_while_libraries_shut_down_leaves_the_exit_code(number, end):
    assert subprocess.run([sys.executable, "-c", ENDS, str(int(number))], cwd=ROOT, timeout=60).returncode == 3


def test_without_a_hold_nothing_is_different():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    release_interrupts()
    assert not interrupted()
    with pytest.raises(KeyboardInterrupt) as raised:
        press(signal.SIGINT)
    assert ending(raised.value) == ("interrupted", 130)


@BOTH
@pytest.mark.parametrize("moment", ["import", "child"])
def test_tool_that_has_paddle_ends_in_one_line_with_the_process_that_it_waits_for(number, end, moment):
    """Paddle's handler of SIGTERM prints a C++ trace and cleans nothing up. While a process has a pipe, `run` waits."""
    words = [sys.executable, "-c", TOOL, str(int(number)), moment]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (end[1], f"error: {end[0]}\n")
