"""A Ctrl-C while a run starts is remembered, whoever swallows the exception."""

import os
import signal

import pytest

from image_classification.runtime import check_interrupts, hold_interrupts, interrupted, release_interrupts


@pytest.fixture(autouse=True)
def handler_of_before():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_held_interrupt_comes_with_the_release():
    hold_interrupts()
    press()
    assert interrupted()
    with pytest.raises(KeyboardInterrupt):
        release_interrupts()


def test_released_interrupt_comes_at_once_and_again_where_it_was_swallowed():
    hold_interrupts()
    release_interrupts()
    check_interrupts()
    try:
        press()
    except BaseException:
        swallowed = True
    assert swallowed
    with pytest.raises(KeyboardInterrupt):
        check_interrupts()


def test_without_a_hold_nothing_is_different():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    release_interrupts()
    assert not interrupted()
    with pytest.raises(KeyboardInterrupt):
        press()
