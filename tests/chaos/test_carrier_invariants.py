"""Each invariant of the scenario `relay` finds the violation that it is about, and nothing where there is none."""

from collections.abc import Callable, Iterator

import pytest

from django_skipqueue.contrib.celery.carrier import carrier_id

from .carried import BROKER, CARRIER, CHILD_KILLED, CUT, KILLED, STALLED
from .carrier_invariants import (
    INVARIANTS,
    MOST_CARRIED,
    carried_deaths_are_counted_right,
    few_run_twice,
    handed_over_once,
    nothing_is_left_over,
    twice,
    window_holds,
)
from .evidence import Death, Entry, Evidence, Stop
from .invariants import changes_are_legal, deaths_are_noticed, nothing_is_lost, stops_are_clean
from .story import DIED, Story, uneventful

HOLDER = carrier_id(CARRIER)

Forgery = Callable[[Story], None]


def carried() -> Story:
    """An uneventful story in which the carrier runs a job as well."""
    story = uneventful()
    story.defer(5_001)
    story.claim(5_001)
    story.hand_over(5_001, HOLDER)
    story.write(5_001, "begin", "end")
    story.settle(5_001)
    story.evidence.carried = [(story.time - 1, MOST_CARRIED), (story.time, 0)]
    story.evidence.left_over = {"chaos": 0}
    return story


def found(invariant: Callable[[Evidence], Iterator[str]], story: Story) -> list[str]:
    return list(invariant(story.evidence))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    evidence = carried().evidence
    assert [list(invariant(evidence)) for invariant in INVARIANTS] == [[]] * len(INVARIANTS)


def leave_a_job_with_the_carrier(story: Story) -> None:
    story.defer(5_002)
    story.claim(5_002)
    story.hand_over(5_002, HOLDER)


def count_a_job_with_the_carrier(story: Story) -> None:
    story.evidence.carried.append((story.time, 1))


def leave_a_message(story: Story) -> None:
    story.evidence.left_over["chaos"] = 3


def exceed_the_window(story: Story) -> None:
    story.evidence.carried.insert(0, (story.evidence.calm_from + 2, MOST_CARRIED + 1))


def hand_over_twice(story: Story) -> None:
    leave_a_job_with_the_carrier(story)
    story.hand_over(5_002, "other")
    story.settle(5_002)


def hand_over_to_somebody_else(story: Story) -> None:
    story.defer(5_002)
    story.claim(5_002)
    story.hand_over(5_002, "third")
    story.settle(5_002)


def hand_over_under_a_new_lease(story: Story) -> None:
    story.defer(5_002)
    story.claim(5_002)
    story.change(5_002, "running", "running", lease=2, attempts=2, holder=HOLDER)
    story.settle(5_002)


def run_again(story: Story, *, jobs: int = 40) -> None:
    for job in range(6_000, 6_000 + jobs):
        story.defer(job)
        story.claim(job)
        story.write(job, "begin", "begin", "end")
        story.settle(job)


def fail_for_two_deaths(story: Story) -> None:
    leave_a_job_with_the_carrier(story)
    for what in (KILLED, CHILD_KILLED, STALLED):
        story.fault(what, began=story.time, ended=story.time)
    story.settle(5_002, "failed", error=DIED, ran_under=None)


FORGERIES: list[tuple[Callable[[Evidence], Iterator[str]], Forgery, str]] = [
    (nothing_is_lost, leave_a_job_with_the_carrier, "job 5002 is still running"),
    (nothing_is_left_over, count_a_job_with_the_carrier, "1 jobs were left with the carrier"),
    (nothing_is_left_over, leave_a_message, "3 messages were left in chaos"),
    (window_holds, exceed_the_window, "2.0 s after the begin the carrier held 451 jobs, more than 450"),
    (handed_over_once, hand_over_to_somebody_else, "job 5002 was handed over from other to third"),
    (changes_are_legal, hand_over_under_a_new_lease, "job 5002 went from running to running"),
    (carried_deaths_are_counted_right, fail_for_two_deaths, "job 5002 was recovered for 3 deaths of its workers, and "),
]


@pytest.mark.parametrize(("invariant", "forge", "expected"), FORGERIES)
def test_a_violation_is_found(invariant: Callable[[Evidence], Iterator[str]], forge: Forgery, expected: str) -> None:
    story = carried()
    forge(story)
    (violation,) = found(invariant, story)
    assert violation.startswith(expected)
    assert invariant in INVARIANTS


def test_a_job_that_is_handed_over_twice_is_found() -> None:
    story = carried()
    hand_over_twice(story)
    assert len(found(handed_over_once, story)) == 2


def test_too_many_jobs_that_run_twice_are_found() -> None:
    story = carried()
    run_again(story, jobs=3)
    assert found(few_run_twice, story) == []
    story = carried()
    run_again(story)
    assert found(few_run_twice, story) == [f"41 of {len(story.evidence.statuses)} jobs ran twice"]


def test_what_does_not_count_as_running_twice() -> None:
    story = carried()
    story.defer(7_001)  # given back before it began
    story.claim(7_001)
    story.release(7_001)
    story.claim(7_001)
    story.write(7_001, "begin", "end")
    story.settle(7_001)
    story.defer(7_002)  # a retry
    story.claim(7_002)
    story.write(7_002, "begin")
    story.settle(7_002, "queued", error="ran under lease 1")
    story.claim(7_002)
    story.write(7_002, "begin", "end")
    story.settle(7_002)
    assert twice(story.evidence) == {3}, "that one was taken from a worker that died"


def test_a_job_that_is_released_while_the_carrier_has_it_runs_twice() -> None:
    story = carried()
    story.defer(7_003)
    story.claim(7_003)
    story.write(7_003, "begin")
    story.release(7_003)
    story.claim(7_003)
    story.write(7_003, "begin", "end")
    story.settle(7_003)
    assert twice(story.evidence) == {3, 7_003}


def test_a_job_that_fails_for_three_deaths_is_right() -> None:
    story = carried()
    leave_a_job_with_the_carrier(story)
    for what in (KILLED, CHILD_KILLED, CUT):
        story.fault(what, began=story.time, ended=story.time).target = BROKER
    story.settle(5_002, "failed", error=DIED, ran_under=None)
    assert found(carried_deaths_are_counted_right, story) == []


def test_a_job_that_was_handed_over_is_not_the_relays_when_it_dies_or_stops() -> None:
    story = carried()
    story.defer(5_002)
    story.claim(5_002, "third")
    story.hand_over(5_002, HOLDER)
    story.fault(began=story.time, ended=story.time, deaths=[Death(12, story.time, alone=True)])
    stop = Stop(frozenset({12}), story.time, story.time + 1, 0)
    story.fault("SIGTERM", began=stop.began, ended=stop.ended, stops=[stop])
    assert found(deaths_are_noticed, story) == []
    assert found(stops_are_clean, story) == []


def test_a_repeated_effect_is_not_taken_for_a_job_that_ran_twice() -> None:
    story = carried()
    story.evidence.entries += [Entry(2, 1, "effect", story.time)]
    assert 2 not in twice(story.evidence), "that is a violation of its own"
