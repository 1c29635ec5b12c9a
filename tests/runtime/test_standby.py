"""What a supervisor and a worker see of each other."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from django_skipqueue.worker.protocol import Standby


def test_at_first_nothing_is_promised_or_offered() -> None:
    standby = Standby()
    assert (standby.slots, standby.room, standby.heard, standby.answered, standby.claimed) == (0, 0, 0, 0, 0)
    assert (standby.watched_until, standby.heartbeat_at, standby.is_session) == (0.0, 0.0, False)


def test_both_sides_see_what_the_other_writes() -> None:
    standby = Standby()
    standby.watched_until, standby.heartbeat_at, standby.is_session = 17.5, 12.25, True
    pid = os.fork()
    if not pid:
        seen = (standby.watched_until, standby.heartbeat_at, standby.is_session) == (17.5, 12.25, True)
        standby.read_call()
        standby.looks()
        standby.looked()
        standby.offer(slots=2, room=3, claimed=2**40)
        os._exit(0 if seen else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert (standby.slots, standby.room, standby.heard, standby.answered, standby.claimed) == (2, 3, 1, 1, 2**40)


def test_a_call_is_heard_when_a_claim_begins_and_answered_with_the_offer_after_it() -> None:
    standby = Standby()
    seen = []
    for step in (standby.read_call, standby.looks, standby.read_call, standby.looked, offer(standby)):
        step()
        seen.append((standby.heard, standby.answered))
    assert seen == [(0, 0), (1, 0), (1, 0), (1, 0), (1, 1)]


def test_a_claim_that_failed_answers_nothing() -> None:
    standby = Standby()
    standby.read_call()
    standby.looks()
    offer(standby)()
    assert (standby.heard, standby.answered) == (1, 0)


def offer(standby: Standby) -> Callable[[], None]:
    return partial(standby.offer, slots=1, room=1, claimed=0)


def test_a_reader_never_sees_half_of_a_write() -> None:
    """The value stays the same, while another process writes it all the time."""
    standby = Standby()
    standby.watched_until = 1e5
    pid = os.fork()
    if not pid:
        while True:
            standby.watched_until = 1e5
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert {standby.watched_until for _ in range(1000)} == {1e5}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
