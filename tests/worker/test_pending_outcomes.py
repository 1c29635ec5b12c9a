"""`PendingOutcomes` keeps outcomes until they are saved. An outcome whose row is locked does not delay others."""

import time
from collections.abc import Collection

import pytest

from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef
from django_skipqueue.worker import outcomes as module
from django_skipqueue.worker.outcomes import FIRST_SLOW_DELAY, PendingOutcomes


def make_completed_attempt(id: int, *, size: int = 0) -> Attempt:
    job = ClaimedJob(
        id=id, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
        priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
    )  # fmt: skip
    return Attempt(
        job, Outcome("completed", result="x" * size) if size else COMPLETED, started=1.0, ended=2.0, worker="w"
    )


class FakeDatabase:
    """Returns which rows are locked, and records each query for them, because `PendingOutcomes` should rarely ask."""

    def __init__(self, *locked: int) -> None:
        self.locked = set(locked)
        self.queried_ids: list[list[int]] = []

    def __call__(self, leases: Collection[LeaseRef]) -> set[int]:
        self.queried_ids.append([id for id, _ in leases])
        return self.locked.intersection(self.queried_ids[-1])


# `alone`: the exchange that failed only settled, and did not claim.
def report_failure(pending: PendingOutcomes, *, alone: bool = False, timed_out: bool = False, now: float = 0.0) -> None:
    pending.failed(alone=alone, timed_out=timed_out, now=now)


def ids_of(attempts: list[Attempt]) -> list[int]:
    return [attempt.job.id for attempt in attempts]


@pytest.fixture
def pending() -> PendingOutcomes:
    pending = PendingOutcomes()
    pending.add([make_completed_attempt(1), make_completed_attempt(2), make_completed_attempt(3)])
    return pending


def test_without_failures_the_database_is_not_asked_for_locked_rows(pending: PendingOutcomes) -> None:
    database = FakeDatabase(2)
    assert pending.due_at <= 0
    assert ids_of(pending.next_batch(database, 0)) == [1, 2, 3]
    assert len(pending.attempts) == 3
    pending.answered()
    assert (len(pending.attempts), pending.due_at <= 0, database.queried_ids) == (0, False, [])


def test_after_a_failure_outcomes_of_locked_rows_wait_and_the_others_are_sent(
    pending: PendingOutcomes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    database = FakeDatabase(2)
    pending.next_batch(database, 99.0)
    report_failure(pending)
    assert len(pending.attempts) == 3
    assert ids_of(pending.next_batch(database, 100.0)) == [1, 3]
    assert database.queried_ids == [[1, 2, 3]]
    assert "outcomes waiting worker=w count=1 first_id=2" in caplog.text
    pending.answered()
    assert (len(pending.attempts), pending.refs()) == (1, {(2, 1)})
    assert pending.due_at > 100.0

    pending.add([make_completed_attempt(4)])
    assert ids_of(pending.next_batch(database, 100.5)) == [4]
    assert len(database.queried_ids) == 1
    pending.answered()

    assert pending.next_check == 101.0  # a second after the last check
    assert pending.due_at <= 101.0
    assert pending.next_batch(database, 101.0) == []
    assert len(caplog.records) == 1, "the lock is logged once"

    database.locked.clear()
    assert ids_of(pending.next_batch(database, 102.0)) == [2]
    assert pending.next_check == float("inf")


def test_a_failure_without_pending_outcomes_plans_no_check() -> None:
    pending = PendingOutcomes()
    report_failure(pending)
    assert pending.next_check == float("inf")
    assert pending.due_at > 0


def test_no_outcome_is_lost_if_the_query_for_locked_rows_fails(pending: PendingOutcomes) -> None:
    def raise_error(leases: Collection[LeaseRef]) -> set[int]:
        raise OSError("gone")

    report_failure(pending)
    with pytest.raises(OSError, match="gone"):
        pending.next_batch(raise_error, 0.0)
    assert ids_of(pending.next_batch(FakeDatabase(), 0.0)) == [1, 2, 3]


# More outcomes than fit into one statement


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS_SETTLED", 100)
    monkeypatch.setattr(module, "MOST_CHARACTERS_WAITING", 400)


def send_all(pending: PendingOutcomes) -> list[list[int]]:
    """Send batches until no outcome waits. Returns the ids of the jobs in each batch."""
    batches = []
    while pending.due_at <= 0.0:
        batches.append(ids_of(pending.next_batch(FakeDatabase(), 0.0)))
        pending.answered()
    return batches


def test_large_outcomes_are_sent_in_several_batches_of_limited_size(small_batches: None) -> None:
    pending = PendingOutcomes()
    pending.add(
        [
            make_completed_attempt(1, size=60),
            make_completed_attempt(2),
            make_completed_attempt(3, size=40),
            make_completed_attempt(4, size=1),
            make_completed_attempt(5, size=500),
        ]
    )
    pending.add([make_completed_attempt(6)])
    assert send_all(pending) == [[1, 2, 3], [4], [5, 6]]


def test_has_more_is_true_while_outcomes_remain_after_a_batch(small_batches: None) -> None:
    pending = PendingOutcomes()
    pending.add([make_completed_attempt(1, size=60), make_completed_attempt(2, size=60)])
    has_more_after_batch = []
    while pending.due_at <= 0.0:
        pending.next_batch(FakeDatabase(), 0.0)
        pending.answered()
        has_more_after_batch.append(pending.has_more)
    assert has_more_after_batch == [True, False]


def test_has_more_is_true_after_failures_only_once_very_many_characters_wait(small_batches: None) -> None:
    pending = PendingOutcomes()
    for number in range(9):
        pending.add([make_completed_attempt(number, size=60)])
        pending.next_batch(FakeDatabase(), 0.0)
        report_failure(pending, alone=True)
        assert pending.has_more == (number >= 6)  # from the seventh outcome on, more than 400 characters wait


def test_a_batch_that_failed_without_a_claim_is_sent_again_in_halves(pending: PendingOutcomes) -> None:
    pending.add([make_completed_attempt(4)])
    pending.next_batch(FakeDatabase(), 0.0)
    report_failure(pending, alone=False)
    assert ids_of(pending.next_batch(FakeDatabase(), 0.0)) == [1, 2, 3, 4], (
        "the claim in the same exchange may have caused the failure"
    )
    report_failure(pending, alone=True)
    assert send_all(pending) == [[1, 2], [3, 4]]


def test_a_single_outcome_that_times_out_is_tried_again_later_and_alone(pending: PendingOutcomes) -> None:
    database = FakeDatabase()
    for _ in range(2):
        pending.next_batch(database, 0.0)
        report_failure(pending, alone=True, timed_out=True)
    assert send_all(pending) == [[2], [3]]
    assert (len(pending.attempts), pending.refs(), pending.due_at) == (1, {(1, 1)}, FIRST_SLOW_DELAY)
    pending.add([make_completed_attempt(4)])
    assert ids_of(pending.next_batch(database, FIRST_SLOW_DELAY)) == [1]
    assert pending.is_slow_alone
    report_failure(pending, timed_out=True, now=FIRST_SLOW_DELAY)
    assert ids_of(pending.next_batch(database, 99.0)) == [4], "after another failure the other outcomes are sent"
    pending.answered()
    database.locked = {1}
    assert pending.next_batch(database, 99.0) == [], "its row is locked, which explains the timeout"
    database.locked.clear()
    assert ids_of(pending.next_batch(database, float("inf"))) == [1]
    pending.answered()
    assert len(pending.attempts) == 0


def test_a_failed_claim_after_a_slow_outcome_was_saved_does_not_send_it_again() -> None:
    pending = PendingOutcomes()
    pending.add([make_completed_attempt(1)])
    pending.next_batch(FakeDatabase(), 0.0)
    report_failure(pending, alone=True, timed_out=True)
    assert ids_of(pending.next_batch(FakeDatabase(), FIRST_SLOW_DELAY)) == [1]
    pending.answered()
    report_failure(pending, timed_out=True, now=FIRST_SLOW_DELAY)
    assert (pending.attempts, pending.next_batch(FakeDatabase(), 2 * FIRST_SLOW_DELAY)) == ([], [])
