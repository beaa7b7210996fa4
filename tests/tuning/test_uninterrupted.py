"""Signals that wait until a process is started."""

import os
import signal
import threading

import pytest

from autotune_planner.tuning.uninterrupted import uninterrupted


class HeardError(Exception):
    pass


@pytest.fixture
def heard():
    def hear(number, _):
        raise HeardError(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_when_the_block_is_left(heard, number):
    done = []
    with pytest.raises(HeardError) as raised, uninterrupted():
        os.kill(os.getpid(), number)
        done.append(True)
    assert (done, raised.value.args) == ([True], (number,))


def test_handlers_are_put_back(heard):
    before = signal.getsignal(signal.SIGTERM)
    with uninterrupted():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_them_alone():
    found = []

    def inside():
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [before]
