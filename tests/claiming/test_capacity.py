"""`Capacity`: how many jobs for one runner a worker claims, and how many waiting jobs it keeps."""

from django_skipqueue.worker.claiming import LONGEST_WAIT_AHEAD, Capacity


def test_it_claims_the_free_slots_and_as_many_as_were_lately_finished() -> None:
    capacity = Capacity(4)
    assert capacity.room(unfinished=1, now=0.0) == 3
    capacity.finished(10, now=0.0)
    assert capacity.room(unfinished=8, now=0.0) == 6
    assert capacity.room(unfinished=20, now=0.0) == 0


def test_of_many_jobs_ahead_it_claims_half_at_once() -> None:
    capacity = Capacity(4)
    capacity.finished(996, now=0.0)
    assert capacity.room(unfinished=0, now=0.0) == 500
    assert capacity.room(unfinished=500, now=0.0) == 500
    assert capacity.room(unfinished=900, now=0.0) == 100


def test_what_runs_is_no_surplus() -> None:
    assert Capacity(4).surplus(unfinished=4, now=0.0) == 0


def test_what_would_wait_for_longer_than_the_patience_is_surplus() -> None:
    capacity = Capacity(4)
    capacity.finished(100, now=0.0)
    capacity.finished(10, now=LONGEST_WAIT_AHEAD)
    assert capacity.surplus(unfinished=200, now=LONGEST_WAIT_AHEAD) == 200 - 4 - 110
    assert capacity.surplus(unfinished=200, now=1.5 * LONGEST_WAIT_AHEAD) == 200 - 4 - 10
    assert capacity.surplus(unfinished=200, now=3 * LONGEST_WAIT_AHEAD) == 200 - 4


def test_it_holds_no_more_than_its_cap_except_for_the_slots() -> None:
    capacity = Capacity(4)
    capacity.finished(1000, now=0.0)
    assert capacity.room(unfinished=0, now=0.0, most=50) == 25
    assert capacity.room(unfinished=40, now=0.0, most=50) == 10
    assert capacity.room(unfinished=60, now=0.0, most=50) == 0
    assert capacity.room(unfinished=1, now=0.0, most=0) == 3
