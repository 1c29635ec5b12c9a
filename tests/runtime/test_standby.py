"""What a supervisor and a worker see of each other."""

import os

from django_skipqueue.runtime.standby import Standby


def test_at_first_nothing_is_promised_or_offered() -> None:
    standby = Standby()
    assert (standby.room, standby.heard, standby.claimed) == (0, 0, 0)
    assert (standby.watched_until, standby.heartbeat_at, standby.is_session) == (0.0, 0.0, False)


def test_both_sides_see_what_the_other_writes() -> None:
    standby = Standby()
    standby.watched_until, standby.heartbeat_at, standby.is_session = 17.5, 12.25, True
    pid = os.fork()
    if not pid:
        seen = (standby.watched_until, standby.heartbeat_at, standby.is_session) == (17.5, 12.25, True)
        standby.hear()
        standby.offer(room=3, claimed=2**40)
        os._exit(0 if seen else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert (standby.room, standby.heard, standby.claimed) == (3, 1, 2**40)


def test_a_call_counts_as_heard_only_with_the_offer_after_it() -> None:
    standby = Standby()
    standby.hear()
    assert standby.heard == 0
    standby.offer(room=1, claimed=0)
    assert standby.heard == 1
