"""`Capacity`: how many jobs a worker claims for its threads or its event loop, and how many waiting jobs it keeps."""

from django_skipqueue.worker.claiming import LONGEST_WAIT_AHEAD, Capacity


def test_a_worker_claims_for_its_free_slots_and_as_many_jobs_as_it_has_lately_finished() -> None:
    capacity = Capacity(4)
    assert capacity.room(unfinished=1, now=0.0) == 3
    capacity.finished(10, now=0.0)
    assert capacity.room(unfinished=8, now=0.0) == 6  # 4 slots and 10 jobs ahead, minus the 8 jobs
    assert capacity.room(unfinished=20, now=0.0) == 0


def test_a_worker_claims_at_most_half_of_the_jobs_that_it_holds_ahead_at_once() -> None:
    capacity = Capacity(4)
    capacity.finished(996, now=0.0)
    assert capacity.room(unfinished=0, now=0.0) == 500  # half of 4 slots and 996 jobs ahead
    assert capacity.room(unfinished=500, now=0.0) == 500
    assert capacity.room(unfinished=900, now=0.0) == 100


def test_running_jobs_do_not_count_as_surplus() -> None:
    assert Capacity(4).surplus(unfinished=4, now=0.0) == 0


def test_jobs_that_would_wait_too_long_in_the_worker_count_as_surplus() -> None:
    capacity = Capacity(4)
    capacity.finished(100, now=0.0)
    capacity.finished(10, now=LONGEST_WAIT_AHEAD)
    assert capacity.surplus(unfinished=200, now=LONGEST_WAIT_AHEAD) == 200 - 4 - 110  # 4 run, 110 are kept
    assert capacity.surplus(unfinished=200, now=1.5 * LONGEST_WAIT_AHEAD) == 200 - 4 - 10
    assert capacity.surplus(unfinished=200, now=3 * LONGEST_WAIT_AHEAD) == 200 - 4


def test_a_worker_holds_no_more_than_its_cap_except_in_free_slots() -> None:
    capacity = Capacity(4)
    capacity.finished(1000, now=0.0)
    assert capacity.room(unfinished=0, now=0.0, most=50) == 25  # half of the cap
    assert capacity.room(unfinished=40, now=0.0, most=50) == 10
    assert capacity.room(unfinished=60, now=0.0, most=50) == 0
    assert capacity.room(unfinished=1, now=0.0, most=0) == 3  # the free slots
