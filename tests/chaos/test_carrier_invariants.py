"""Each invariant of the scenario `relay` finds its violation in forged evidence, and nothing in correct evidence."""

from collections.abc import Callable, Iterator

import pytest

from django_skipqueue.contrib.celery.carrier import carrier_id

from .carried import BROKER, BROKER_KILLED, CARRIER, CHILD_KILLED, CONNECTIONS_CUT, CONNECTIONS_STALLED
from .carrier_invariants import (
    INVARIANTS,
    MOST_CARRIED,
    carried_deaths_are_counted_right,
    few_run_twice,
    handed_over_once,
    jobs_run_twice,
    nothing_is_left_over,
    window_holds,
)
from .evidence import Death, Entry, Evidence, Stop
from .evidence_builder import DEATH_ERROR, THIRD_PID, EvidenceBuilder, without_violations
from .invariants import changes_are_legal, deaths_are_noticed, nothing_is_lost, stops_are_clean

HOLDER = carrier_id(CARRIER)

Forgery = Callable[[EvidenceBuilder], None]


def build_carried() -> EvidenceBuilder:
    """Evidence without violations in which the carrier runs a job as well."""
    builder = without_violations()
    builder.defer(5_001)
    builder.claim(5_001)
    builder.hand_over(5_001, HOLDER)
    builder.write_entries(5_001, "begin", "end")
    builder.settle(5_001)
    builder.evidence.carried_counts = [(builder.time - 1, MOST_CARRIED), (builder.time, 0)]
    builder.evidence.messages_left = {"chaos": 0}
    return builder


def violations_of(invariant: Callable[[Evidence], Iterator[str]], builder: EvidenceBuilder) -> list[str]:
    return list(invariant(builder.evidence))


def test_evidence_without_a_violation_passes_the_invariants_of_a_carrier() -> None:
    evidence = build_carried().evidence
    assert [list(invariant(evidence)) for invariant in INVARIANTS] == [[]] * len(INVARIANTS)


def leave_a_job_with_the_carrier(builder: EvidenceBuilder) -> None:
    builder.defer(5_002)
    builder.claim(5_002)
    builder.hand_over(5_002, HOLDER)


def count_a_job_of_the_carrier(builder: EvidenceBuilder) -> None:
    builder.evidence.carried_counts.append((builder.time, 1))


def leave_a_message(builder: EvidenceBuilder) -> None:
    builder.evidence.messages_left["chaos"] = 3


def exceed_the_window(builder: EvidenceBuilder) -> None:
    builder.evidence.carried_counts.insert(0, (builder.evidence.calm_from + 2, MOST_CARRIED + 1))


def hand_over_twice(builder: EvidenceBuilder) -> None:
    leave_a_job_with_the_carrier(builder)
    builder.hand_over(5_002, "other")
    builder.settle(5_002)


def hand_over_to_somebody_else(builder: EvidenceBuilder) -> None:
    builder.defer(5_002)
    builder.claim(5_002)
    builder.hand_over(5_002, "third")
    builder.settle(5_002)


def hand_over_under_a_new_lease(builder: EvidenceBuilder) -> None:
    builder.defer(5_002)
    builder.claim(5_002)
    builder.change(5_002, "running", "running", lease=2, attempts=2, holder=HOLDER)
    builder.settle(5_002)


def run_again(builder: EvidenceBuilder, *, jobs: int = 40) -> None:
    for job in range(6_000, 6_000 + jobs):
        builder.defer(job)
        builder.claim(job)
        builder.write_entries(job, "begin", "begin", "end")
        builder.settle(job)


def fail_for_two_deaths(builder: EvidenceBuilder) -> None:
    leave_a_job_with_the_carrier(builder)
    for what in (BROKER_KILLED, CHILD_KILLED, CONNECTIONS_STALLED):
        builder.add_fault(what, began=builder.time, ended=builder.time)
    builder.settle(5_002, "failed", error=DEATH_ERROR, ran_under=None)


# The invariant, the function that adds a violation, and the beginning of the sentence about it.
FORGERIES: list[tuple[Callable[[Evidence], Iterator[str]], Forgery, str]] = [
    (nothing_is_lost, leave_a_job_with_the_carrier, "job 5002 is still running"),
    (nothing_is_left_over, count_a_job_of_the_carrier, "1 jobs were left with the carrier"),
    (nothing_is_left_over, leave_a_message, "3 messages were left in chaos"),
    (window_holds, exceed_the_window, "2.0 s after the begin the carrier held 451 jobs, more than 450"),
    (handed_over_once, hand_over_to_somebody_else, "job 5002 was handed over from other to third"),
    (changes_are_legal, hand_over_under_a_new_lease, "job 5002 went from running to running"),
    (carried_deaths_are_counted_right, fail_for_two_deaths, "job 5002 was recovered for 3 deaths of its workers, and "),
]


@pytest.mark.parametrize(("invariant", "forge", "expected"), FORGERIES)
def test_each_invariant_of_a_carrier_finds_its_violation(
    invariant: Callable[[Evidence], Iterator[str]], forge: Forgery, expected: str
) -> None:
    builder = build_carried()
    forge(builder)
    (violation,) = violations_of(invariant, builder)
    assert violation.startswith(expected)
    assert invariant in INVARIANTS


def test_a_job_that_is_handed_over_twice_is_found() -> None:
    builder = build_carried()
    hand_over_twice(builder)
    assert len(violations_of(handed_over_once, builder)) == 2


def test_too_many_jobs_that_run_twice_are_found() -> None:
    builder = build_carried()
    run_again(builder, jobs=3)
    assert violations_of(few_run_twice, builder) == []
    builder = build_carried()
    run_again(builder)
    assert violations_of(few_run_twice, builder) == [f"41 of {len(builder.evidence.statuses)} jobs ran twice"]


def test_a_released_or_retried_job_does_not_count_as_running_twice() -> None:
    builder = build_carried()
    builder.defer(7_001)  # released before it began
    builder.claim(7_001)
    builder.release(7_001)
    builder.claim(7_001)
    builder.write_entries(7_001, "begin", "end")
    builder.settle(7_001)
    builder.defer(7_002)  # a retry
    builder.claim(7_002)
    builder.write_entries(7_002, "begin")
    builder.settle(7_002, "queued", error="ran under lease 1")
    builder.claim(7_002)
    builder.write_entries(7_002, "begin", "end")
    builder.settle(7_002)
    assert jobs_run_twice(builder.evidence) == {3}, "job 3 was recovered from a worker that died"


def test_a_job_that_is_released_while_the_carrier_has_it_runs_twice() -> None:
    builder = build_carried()
    builder.defer(7_003)
    builder.claim(7_003)
    builder.write_entries(7_003, "begin")
    builder.release(7_003)
    builder.claim(7_003)
    builder.write_entries(7_003, "begin", "end")
    builder.settle(7_003)
    assert jobs_run_twice(builder.evidence) == {3, 7_003}


def test_a_job_that_fails_after_three_faults_is_no_violation() -> None:
    builder = build_carried()
    leave_a_job_with_the_carrier(builder)
    for what in (BROKER_KILLED, CHILD_KILLED, CONNECTIONS_CUT):
        builder.add_fault(what, began=builder.time, ended=builder.time).target = BROKER
    builder.settle(5_002, "failed", error=DEATH_ERROR, ran_under=None)
    assert violations_of(carried_deaths_are_counted_right, builder) == []


def test_a_job_that_was_handed_over_does_not_belong_to_its_relay() -> None:
    builder = build_carried()
    builder.defer(5_002)
    builder.claim(5_002, "third")
    builder.hand_over(5_002, HOLDER)
    builder.add_fault(began=builder.time, ended=builder.time, deaths=[Death(THIRD_PID, builder.time, alone=True)])
    stop = Stop(frozenset({THIRD_PID}), began=builder.time, ended=builder.time + 1, code=0)
    builder.add_fault("SIGTERM", began=stop.began, ended=stop.ended, stops=[stop])
    assert violations_of(deaths_are_noticed, builder) == []
    assert violations_of(stops_are_clean, builder) == []


def test_a_repeated_effect_does_not_count_as_a_job_that_ran_twice() -> None:
    builder = build_carried()
    builder.evidence.entries += [Entry(job=2, lease=1, what="effect", at=builder.time)]
    assert 2 not in jobs_run_twice(builder.evidence), "another invariant finds a repeated effect"
