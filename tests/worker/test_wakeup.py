"""`Wakeup`: the loop misses no call, whenever the call comes."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from django_skipqueue.worker.loop import Wakeup

from ..app.waiting import DEADLINE, wait_until, within

LONG_WAIT_SECONDS = 10 * DEADLINE


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    """A `Wakeup`. The process's own signal handlers are restored afterwards."""
    signal_numbers = (signal.SIGUSR1, signal.SIGUSR2)
    handlers_before = {number: signal.getsignal(number) for number in signal_numbers}
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()
    for number, handler in handlers_before.items():
        signal.signal(number, handler)


def test_a_wait_ends_after_its_timeout(wakeup: Wakeup) -> None:
    with within(DEADLINE):
        assert wakeup.wait(0.01) == []
        assert wakeup.wait(-1) == []


def test_a_call_ends_the_wait(wakeup: Wakeup) -> None:
    def call() -> None:
        wait_until(lambda: wakeup.is_asleep)
        wakeup.call()

    with within(DEADLINE):
        thread = threading.Thread(target=call)
        thread.start()
        wakeup.wait(LONG_WAIT_SECONDS)
        thread.join()


def test_a_call_between_the_check_of_the_condition_and_the_sleep_ends_the_wait(wakeup: Wakeup) -> None:
    def is_false_before_a_call() -> bool:
        wakeup.call()
        return False

    with within(DEADLINE):
        wakeup.wait(LONG_WAIT_SECONDS, unless=is_false_before_a_call)


def test_a_wait_with_a_true_condition_ends_at_once(wakeup: Wakeup) -> None:
    with within(DEADLINE):
        wakeup.wait(LONG_WAIT_SECONDS, unless=lambda: True)


def test_readable_files_are_returned_even_with_a_true_condition(wakeup: Wakeup) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    with within(DEADLINE):
        assert wakeup.wait(LONG_WAIT_SECONDS, unless=lambda: True, files=[read_end]) == [read_end]
    os.close(read_end)
    os.close(write_end)


def test_a_readable_file_ends_the_wait_and_is_returned(wakeup: Wakeup) -> None:
    (open_read_end, open_write_end), (ended_read_end, ended_write_end) = os.pipe(), os.pipe()
    with within(DEADLINE):
        os.close(ended_write_end)  # the end of a file counts as readable
        assert wakeup.wait(LONG_WAIT_SECONDS, files=[open_read_end, ended_read_end]) == [ended_read_end]
    for descriptor in (open_read_end, open_write_end, ended_read_end):
        os.close(descriptor)


def test_calls_to_a_loop_that_is_awake_make_no_system_call_and_do_not_end_a_later_wait(
    wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("a system call"))
    wakeup.call()


def test_only_the_first_of_many_calls_writes(wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: writes.append(data))

    def call_a_hundred_times() -> bool:
        for _ in range(100):
            wakeup.call()
        return True

    wakeup.wait(0, unless=call_a_hundred_times)
    assert writes == [b"\0"]


def test_a_call_that_was_answered_does_not_end_the_next_wait(wakeup: Wakeup) -> None:
    def call_and_return_true() -> bool:
        wakeup.call()
        return True

    wakeup.wait(0, unless=call_and_return_true)
    started_at = time.monotonic()
    wakeup.wait(0.05)
    assert time.monotonic() - started_at >= 0.05  # the second wait lasted until its timeout


def test_a_full_pipe_blocks_neither_the_caller_nor_the_wait(wakeup: Wakeup) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(wakeup.write_end, b"\0" * 65_536)
    wakeup.is_asleep = True
    with within(DEADLINE):
        wakeup.call()
        wakeup.wait(LONG_WAIT_SECONDS)


def test_a_signal_ends_the_wait_and_runs_its_handler(wakeup: Wakeup) -> None:
    received_signals: list[int] = []
    wakeup.on_signals(received_signals.append, (signal.SIGUSR1, signal.SIGUSR2))

    def send() -> None:
        wait_until(lambda: wakeup.is_asleep)
        os.kill(os.getpid(), signal.SIGUSR2)

    with within(DEADLINE):
        thread = threading.Thread(target=send)
        thread.start()
        wakeup.wait(LONG_WAIT_SECONDS)
        thread.join()
    assert received_signals == [signal.SIGUSR2]


def test_a_signal_before_the_wait_is_not_missed(wakeup: Wakeup) -> None:
    received_signals: list[int] = []
    wakeup.on_signals(received_signals.append, (signal.SIGUSR1,))
    os.kill(os.getpid(), signal.SIGUSR1)
    with within(DEADLINE):
        wakeup.wait(LONG_WAIT_SECONDS)
    assert received_signals == [signal.SIGUSR1]


def test_closing_a_wakeup_closes_its_pipe() -> None:
    wakeup = Wakeup()
    pipe_ends = (wakeup.read_end, wakeup.write_end)
    wakeup.close()
    for pipe_end in pipe_ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pipe_end)
