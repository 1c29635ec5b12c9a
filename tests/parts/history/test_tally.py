"""The tally of a process counts attempts by task, queue and minute."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from django_skipqueue.events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsEnded,
    AttemptsFailed,
    AttemptsRetrying,
    JobsPruned,
    JobsRecovered,
    LeasesLost,
)
from django_skipqueue.parts.history import rollups
from django_skipqueue.parts.history.rollups import OTHER_NAME, WORKER_DIED, RollUpTally
from django_skipqueue.values.counting import histogram
from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, RecoveredJob

NOON = 1_800_000_000.0  # the start of a minute, and of an hour


def attempt(outcome: Outcome = COMPLETED, *, task: str = "t", queue_name: str = "q", ran: float = 2.0) -> Attempt:
    """Return an attempt whose job was due at noon and claimed 1 s later, and that started 3 s after the claim."""
    job = ClaimedJob(7, 1, task, queue_name, "[]", "{}", 1, 10, 0, NOON, NOON + 1, "{}", claimed_at=50.0)
    return Attempt(job, outcome, 53.0, 53.0 + ran, "w")


def failed_attempt(place: str = "shop.send", **fields: object) -> Attempt:
    error = {"exception": "builtins.ValueError", "place": place, "line": 12} | fields
    return attempt(Outcome("failed", last_error="ValueError", error=error))


def rows_of(tally: RollUpTally, **filters: object) -> list[dict[str, object]]:
    rows, _ = tally.take()
    return [row for row in rows if all(row[name] == value for name, value in filters.items())]


def test_an_attempt_counts_for_its_task_its_queue_and_all_queues_in_each_span() -> None:
    tally = RollUpTally()
    assert tally.is_empty
    tally.ended(AttemptsCompleted, [attempt(), attempt()])
    assert not tally.is_empty
    rows, failures = tally.take()
    assert not failures
    assert {(row["span"], row["queue_name"], row["task"], row["starts_at"]) for row in rows} == {
        (span, queue_name, task, 0 if span == 0 else NOON)
        for span in (0, 60, 3600)
        for queue_name, task in (("q", "t"), ("q", ""), ("", ""))
    }
    for row in rows:
        assert row["completed"] == 2
        assert row["waited"] == histogram([4.0, 4.0])
        assert row["ran"] == histogram([2.0, 2.0])
        assert (row["waited_seconds"], row["ran_seconds"]) == (8.0, 4.0)
    assert tally.is_empty
    assert tally.take() == ([], [])


@pytest.mark.parametrize(
    ("event_class", "outcome", "column"),
    [
        (AttemptsCompleted, COMPLETED, "completed"),
        (AttemptsRetrying, Outcome("scheduled", delay=1.0), "retried"),
        (AttemptsRetrying, Outcome("scheduled", delay=1.0, refund=1), "snoozed"),
        (AttemptsFailed, Outcome("failed"), "failed"),
        (AttemptsDiscarded, Outcome("discarded"), "discarded"),
        (AttemptsCancelled, Outcome("discarded"), "discarded"),
        (LeasesLost, COMPLETED, "lost"),
    ],
)
def test_each_kind_of_ended_attempt_has_its_column(
    event_class: type[AttemptsEnded], outcome: Outcome, column: str
) -> None:
    tally = RollUpTally()
    tally.ended(event_class, [attempt(outcome)])
    (row,) = rows_of(tally, span=60, task="t")
    outcomes = ("completed", "retried", "snoozed", "failed", "discarded", "recovered", "lost")
    assert {name: row[name] for name in outcomes if row[name]} == {column: 1}


def test_tasks_and_queues_are_counted_separately() -> None:
    tally = RollUpTally()
    tally.ended(AttemptsCompleted, [attempt(task="a"), attempt(task="b"), attempt(task="b", queue_name="r")])
    completed = {(row["queue_name"], row["task"]): row["completed"] for row in rows_of(tally, span=60)}
    assert completed == {("q", "a"): 1, ("q", "b"): 1, ("r", "b"): 1, ("q", ""): 2, ("r", ""): 1, ("", ""): 3}


def test_minutes_are_counted_by_the_databases_clock() -> None:
    tally = RollUpTally()
    tally.ended(AttemptsCompleted, [attempt(ran=2.0)])  # ends 6 s after noon
    tally.ended(AttemptsCompleted, [attempt(ran=60.0)])
    minutes = {row["starts_at"] for row in rows_of(tally, span=60, task="t")}
    assert minutes == {NOON, NOON + 60}


def test_failures_of_one_cause_are_counted_together() -> None:
    tally = RollUpTally()
    tally.ended(AttemptsFailed, [failed_attempt(), failed_attempt(line=13), failed_attempt("shop.charge")])
    tally.ended(AttemptsRetrying, [failed_attempt(line=14)])
    _, failures = tally.take()
    failures_by_span_and_place = {(row["span"], row["place"]): row for row in failures}
    assert {key: row["number"] for key, row in failures_by_span_and_place.items()} == {
        (span, place): number for span in (0, 60, 3600) for place, number in (("shop.send", 3), ("shop.charge", 1))
    }
    row = failures_by_span_and_place[60, "shop.send"]
    assert (row["task"], row["exception"], row["last_line"], row["last_job_id"]) == ("t", "builtins.ValueError", 14, 7)
    assert row["first_at"] == row["last_at"] == NOON + 6
    assert row["starts_at"] == NOON


def recovered_at(at: datetime) -> RecoveredJob:
    return RecoveredJob(id=3, task="t", queue_name="q", attempt=1, status="queued", locked_by="w:1",
                        locked_at=at - timedelta(hours=1), metadata="{}", recovered_at=at)  # fmt: skip


def test_a_recovery_counts_and_a_job_that_fails_by_it_counts_as_failed() -> None:
    tally = RollUpTally()
    at = datetime(2027, 1, 15, tzinfo=UTC)
    recovered_job = recovered_at(at)
    recovery_event = JobsRecovered("default", [recovered_job, recovered_job._replace(id=4, status="failed")])
    prune_event = JobsPruned("default", {"completed": 1})
    tally.sent(recovery_event)
    tally.sent(prune_event)
    rows, failures = tally.take()
    (row,) = (row for row in rows if row["span"] == 0 and row["task"] == "t")
    assert (row["recovered"], row["failed"]) == (2, 1)
    (failure,) = (row for row in failures if row["span"] == 0)
    assert (failure["exception"], failure["number"], failure["last_job_id"]) == (WORKER_DIED, 2, 4)
    assert failure["last_at"] == at.timestamp(), "by the database's clock"
    assert {row["starts_at"] for row in rows if row["span"] == 60} == {at.timestamp()}


def test_a_death_counts_once_for_all_queues_and_once_for_each_task_that_was_running() -> None:
    tally = RollUpTally()
    at = datetime(2027, 1, 15, tzinfo=UTC)
    recovered_job = recovered_at(at)
    other_jobs = [
        recovered_job._replace(id=4),
        recovered_job._replace(id=5, task="u"),
        recovered_job._replace(id=6, locked_by="w:2"),
    ]
    jobs_of_other_queue = [
        recovered_job._replace(id=7, queue_name="r"),
        recovered_job._replace(id=8, queue_name="r", locked_by="w:3"),
    ]
    tally.sent(JobsRecovered("default", [recovered_job, *other_jobs, *jobs_of_other_queue]))
    deaths = {(row["queue_name"], row["task"]): row["deaths"] for row in rows_of(tally, span=60)}
    assert deaths == {("", ""): 3, ("q", ""): 0, ("q", "t"): 2, ("q", "u"): 1, ("r", ""): 0, ("r", "t"): 1}


def test_a_job_that_is_due_after_the_time_of_its_claim_has_not_waited() -> None:
    """The claim has the time at which its statement began, but can see a job that became due just after that."""
    tally, usual_attempt = RollUpTally(), attempt()
    due_after_its_claim = usual_attempt._replace(
        job=usual_attempt.job._replace(run_after=usual_attempt.job.locked_at + 0.007)
    )
    assert due_after_its_claim.wait_ms == 3_000.0
    assert due_after_its_claim.job.wait_ms == 0.0
    tally.ended(AttemptsCompleted, [due_after_its_claim])
    (row,) = rows_of(tally, span=60, task="t")
    assert (row["waited_seconds"], row["waited_longest"]) == (3.0, 3.0)


def test_claims_are_counted_for_all_queues_with_their_time() -> None:
    tally = RollUpTally()
    job = attempt().job
    tally.claimed([job._replace(claim_seconds=0.001), job._replace(claim_seconds=0.004)])
    tally.claimed([])
    (row,) = rows_of(tally, span=60)
    assert (row["queue_name"], row["task"]) == ("", "")
    assert (row["claims"], row["claim_seconds"], row["claim_times"]) == (1, 0.004, histogram([0.004]))


def test_too_many_tasks_and_causes_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MOST_TASKS_COUNTED", 2)
    monkeypatch.setattr(rollups, "MOST_CAUSES_COUNTED", 1)
    tally = RollUpTally()
    for number in range(5):
        failed = failed_attempt(f"place{number}")
        tally.ended(AttemptsFailed, [replace_task(failed, f"t{number}")])
    rows, failures = tally.take()
    counted = {row["task"]: row["failed"] for row in rows if row["span"] == 60 and row["task"]}
    assert counted == {"t0": 1, "t1": 1, OTHER_NAME: 3}
    assert sum(row["number"] for row in failures if row["span"] == 60) == 5
    assert {row["task"] for row in failures} == {"t0", OTHER_NAME}


def replace_task(attempt: Attempt, task: str) -> Attempt:
    return attempt._replace(job=attempt.job._replace(task=task), outcome=replace(attempt.outcome))
