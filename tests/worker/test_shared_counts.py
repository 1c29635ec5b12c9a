"""`SharedCounts`: numbers in shared memory by which a supervisor and a worker process inform each other."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from django_skipqueue.worker.protocol import SharedCounts


def test_all_shared_counts_are_zero_at_first() -> None:
    shared = SharedCounts()
    assert (shared.slots, shared.room, shared.heard, shared.answered, shared.claimed) == (0, 0, 0, 0, 0)
    assert (shared.watched_until, shared.heartbeat_at, shared.is_session) == (0.0, 0.0, False)


def test_each_process_sees_the_numbers_of_the_other_process() -> None:
    shared = SharedCounts()
    shared.watched_until, shared.heartbeat_at, shared.is_session = 17.5, 12.25, True
    pid = os.fork()
    if not pid:
        is_equal = (shared.watched_until, shared.heartbeat_at, shared.is_session) == (17.5, 12.25, True)
        shared.read_call()
        shared.begin_claim()
        shared.end_claim()
        shared.offer(slots=2, room=3, claimed=2**40)
        os._exit(0 if is_equal else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert (shared.slots, shared.room, shared.heard, shared.answered, shared.claimed) == (2, 3, 1, 1, 2**40)


def test_a_call_is_heard_when_a_claim_begins_and_answered_with_the_offer_after_it() -> None:
    shared = SharedCounts()
    counts_after_steps = []
    for step in (shared.read_call, shared.begin_claim, shared.read_call, shared.end_claim, offer_a_slot(shared)):
        step()
        counts_after_steps.append((shared.heard, shared.answered))
    assert counts_after_steps == [(0, 0), (1, 0), (1, 0), (1, 0), (1, 1)], "the second call came during the claim"


def test_a_failed_claim_does_not_answer_a_call() -> None:
    shared = SharedCounts()
    shared.read_call()
    shared.begin_claim()
    offer_a_slot(shared)()
    assert (shared.heard, shared.answered) == (1, 0)  # the claim began, but did not succeed


def offer_a_slot(shared: SharedCounts) -> Callable[[], None]:
    return partial(shared.offer, slots=1, room=1, claimed=0)


def test_a_reader_never_sees_half_of_a_write() -> None:
    """Another process writes the same value again and again, while this process reads it."""
    shared = SharedCounts()
    shared.watched_until = 1e5
    pid = os.fork()
    if not pid:
        while True:
            shared.watched_until = 1e5
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert {shared.watched_until for _ in range(1000)} == {1e5}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
