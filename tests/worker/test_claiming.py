"""`Claiming`: how many jobs, from which queues, and when."""

import pytest

from django_skipqueue.records import ClaimedJob
from django_skipqueue.worker.claiming import Claiming
from django_skipqueue.worker.frontier import SHARE, rest_after
from django_skipqueue.worker.options import WorkerOptions

JOB = ClaimedJob(1, 1, "task", "default", "[]", "{}", 1, 10, 0, 9.0, 9.0, "{}", chosen_in=0.02)


def claiming(**options: object) -> Claiming:
    return Claiming(WorkerOptions(name="w", database="default", **{"concurrency": 4, "poll_interval": 2.0, **options}))  # type: ignore[arg-type]


def never() -> list[str]:
    raise AssertionError("There was nothing to search for.")


def test_after_an_error_it_claims_at_once_and_from_the_front() -> None:
    claims = claiming()
    claims.after(now=100.0)
    claims.claimed([JOB], room=4, after={}, started=100.0, ended=100.5)
    assert claims.next_look > 100.5
    claims.start_over()
    assert claims.next_look == 0.0
    assert claims.after(now=100.5) == {}


def test_queues_that_were_listed_stay_as_listed() -> None:
    claims = claiming(queue_names=("b", "a"))
    claims.choose_queues(never, clock=lambda: 0.0)
    claims.heard({"c"})
    assert claims.queue_names == ["b", "a"]


def test_queues_that_were_not_listed_are_searched_for_now_and_then_and_served_in_turn() -> None:
    claims = claiming()
    claims.choose_queues(lambda: ["a", "b", "c"], clock=lambda: 100.0)
    assert claims.queue_names == ["b", "c", "a"]
    claims.choose_queues(never, clock=lambda: 101.9)
    assert claims.queue_names == ["c", "a", "b"]
    claims.choose_queues(lambda: ["d"], clock=lambda: 102.0)
    assert claims.queue_names == ["d"]


def test_a_search_that_takes_long_comes_seldom() -> None:
    claims = claiming(poll_interval=0.1)
    times = iter([100.0, 100.02])
    claims.choose_queues(lambda: ["a"], clock=lambda: next(times))
    claims.choose_queues(never, clock=lambda: 100.02 + rest_after(0.02) - 0.1)
    claims.choose_queues(lambda: ["b"], clock=lambda: 100.02 + rest_after(0.02) + 0.1)
    assert claims.queue_names == ["b"]


def test_after_a_claim_that_brought_all_it_asked_for_comes_the_next_at_once() -> None:
    claims = claiming()
    claims.after(now=100.0)
    assert claims.claimed([JOB], room=1, after={}, started=100.0, ended=100.5) is False
    assert claims.next_look == 100.5


@pytest.mark.parametrize(("jobs", "empty"), [([], True), ([JOB], False)])
def test_after_a_look_from_the_front_that_brought_less_it_waits(jobs: list[ClaimedJob], empty: bool) -> None:
    claims = claiming()
    claims.after(now=100.0)
    assert claims.claimed(jobs, room=4, after={}, started=100.0, ended=100.5) is empty
    assert claims.next_look == 102.5


def test_after_a_look_from_the_frontier_that_brought_less_it_looks_from_the_front_as_soon_as_it_may() -> None:
    claims = claiming()
    claims.after(now=100.0)
    claims.claimed([JOB], room=1, after={}, started=100.0, ended=100.5)
    after = claims.after(now=100.5)
    assert after
    assert claims.claimed([], room=4, after=after, started=100.5, ended=100.6) is False
    assert claims.next_look == pytest.approx(100.5 + JOB.chosen_in * (1 / SHARE - 1))


def test_it_looks_at_once_when_a_queue_of_its_own_gets_jobs() -> None:
    claims = claiming(queue_names=("a",))
    claims.look_at(500.0)
    claims.heard({"b"})
    assert claims.next_look == 500.0
    claims.heard({"a", "b"})
    assert claims.next_look == 0.0


def test_a_queue_that_gets_its_first_jobs_is_served_without_a_search() -> None:
    claims = claiming()
    claims.look_at(500.0)
    claims.heard({"b", "a"})
    assert claims.queue_names == ["a", "b"]
    assert claims.next_look == 0.0
