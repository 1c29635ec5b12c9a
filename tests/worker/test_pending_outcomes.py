"""`PendingOutcomes`: outcomes wait until they are written, and an outcome whose row is locked delays no other."""

import time
from collections.abc import Collection

import pytest

from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef
from django_skipqueue.worker import outcomes as module
from django_skipqueue.worker.outcomes import FIRST_SLOW_DELAY, PendingOutcomes


def attempt(id: int, *, size: int = 0) -> Attempt:
    job = ClaimedJob(id, 1, "t", "default", "[]", "{}", 1, 1, 0, 0.0, 0.0, "{}")
    return Attempt(job, Outcome("completed", result="x" * size) if size else COMPLETED, 1.0, 2.0, "w")


class Database:
    """Stands for a database with locked rows. `PendingOutcomes` asks it as seldom as possible."""

    def __init__(self, *locked: int) -> None:
        self.locked = set(locked)
        self.asked: list[list[int]] = []

    def __call__(self, leases: Collection[LeaseRef]) -> set[int]:
        self.asked.append([id for id, _ in leases])
        return self.locked.intersection(self.asked[-1])


def fail(pending: PendingOutcomes, *, alone: bool = False, timed_out: bool = False, now: float = 0.0) -> None:
    pending.failed(alone=alone, timed_out=timed_out, now=now)


def ids(attempts: list[Attempt]) -> list[int]:
    return [attempt.job.id for attempt in attempts]


@pytest.fixture
def pending() -> PendingOutcomes:
    made = PendingOutcomes()
    made.add([attempt(1), attempt(2), attempt(3)])
    return made


def test_as_long_as_all_goes_well_nobody_is_asked(pending: PendingOutcomes) -> None:
    database = Database(2)
    assert pending.due_at <= 0
    assert ids(pending.next_batch(database, 0)) == [1, 2, 3]
    assert len(pending.attempts) == 3
    pending.answered()
    assert (len(pending.attempts), pending.due_at <= 0, database.asked) == (0, False, [])


def test_without_an_answer_all_are_kept_and_those_that_are_locked_wait_aside(
    pending: PendingOutcomes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    database = Database(2)
    pending.next_batch(database, 99.0)
    fail(pending)
    assert len(pending.attempts) == 3
    assert ids(pending.next_batch(database, 100.0)) == [1, 3]
    assert database.asked == [[1, 2, 3]]
    assert "outcomes waiting worker=w count=1 first_id=2" in caplog.text
    pending.answered()
    assert (len(pending.attempts), pending.refs()) == (1, {(2, 1)})
    assert pending.due_at > 100.0

    pending.add([attempt(4)])
    assert ids(pending.next_batch(database, 100.5)) == [4]
    assert len(database.asked) == 1
    pending.answered()

    assert pending.next_check == 101.0
    assert pending.due_at <= 101.0
    assert pending.next_batch(database, 101.0) == []
    assert len(caplog.records) == 1, "it is told once"

    database.locked.clear()
    assert ids(pending.next_batch(database, 102.0)) == [2]
    assert pending.next_check == float("inf")


def test_a_failure_with_nothing_to_send_is_no_reason_to_ask() -> None:
    pending = PendingOutcomes()
    fail(pending)
    assert pending.next_check == float("inf")
    assert pending.due_at > 0


def test_whoever_fails_while_asking_loses_nothing(pending: PendingOutcomes) -> None:
    def broken(leases: Collection[LeaseRef]) -> set[int]:
        raise OSError("gone")

    fail(pending)
    with pytest.raises(OSError, match="gone"):
        pending.next_batch(broken, 0.0)
    assert ids(pending.next_batch(Database(), 0.0)) == [1, 2, 3]


# What is too much for one statement


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS_SETTLED", 100)
    monkeypatch.setattr(module, "MOST_CHARACTERS_WAITING", 400)


def batches(pending: PendingOutcomes) -> list[list[int]]:
    """The ids of the attempts in each batch, until no outcome waits."""
    sent = []
    while pending.due_at <= 0.0:
        sent.append(ids(pending.next_batch(Database(), 0.0)))
        pending.answered()
    return sent


def test_large_outcomes_are_sent_in_batches_and_the_largest_alone(small_batches: None) -> None:
    pending = PendingOutcomes()
    pending.add([attempt(1, size=60), attempt(2), attempt(3, size=40), attempt(4, size=1), attempt(5, size=500)])
    pending.add([attempt(6)])
    assert batches(pending) == [[1, 2, 3], [4], [5, 6]]


def test_while_more_waits_than_is_sent_nothing_should_be_added(small_batches: None) -> None:
    pending = PendingOutcomes()
    pending.add([attempt(1, size=60), attempt(2, size=60)])
    full = []
    while pending.due_at <= 0.0:
        pending.next_batch(Database(), 0.0)
        pending.answered()
        full.append(pending.has_more)
    assert full == [True, False]


def test_a_failure_keeps_claims_only_while_very_much_waits(small_batches: None) -> None:
    pending = PendingOutcomes()
    for number in range(9):
        pending.add([attempt(number, size=60)])
        pending.next_batch(Database(), 0.0)
        fail(pending, alone=True)
        assert pending.has_more == (number >= 6)


def test_what_failed_alone_is_sent_in_halves(pending: PendingOutcomes) -> None:
    pending.add([attempt(4)])
    pending.next_batch(Database(), 0.0)
    fail(pending, alone=False)
    assert ids(pending.next_batch(Database(), 0.0)) == [1, 2, 3, 4], "perhaps the claim that went with them is to blame"
    fail(pending, alone=True)
    assert batches(pending) == [[1, 2], [3, 4]]


def test_an_outcome_that_is_too_slow_alone_waits_aside_and_is_tried_alone(pending: PendingOutcomes) -> None:
    database = Database()
    for _ in range(2):
        pending.next_batch(database, 0.0)
        fail(pending, alone=True, timed_out=True)
    assert batches(pending) == [[2], [3]]
    assert (len(pending.attempts), pending.refs(), pending.due_at) == (1, {(1, 1)}, FIRST_SLOW_DELAY)
    pending.add([attempt(4)])
    assert ids(pending.next_batch(database, FIRST_SLOW_DELAY)) == [1]
    assert pending.is_slow_alone
    fail(pending, timed_out=True, now=FIRST_SLOW_DELAY)
    assert ids(pending.next_batch(database, 99.0)) == [4], "after a try come the others"
    pending.answered()
    database.locked = {1}
    assert pending.next_batch(database, 99.0) == [], "somebody has it locked, so it is not to blame"
    database.locked.clear()
    assert ids(pending.next_batch(database, float("inf"))) == [1]
    pending.answered()
    assert len(pending.attempts) == 0


def test_a_claim_that_fails_after_a_slow_outcome_was_written_concerns_no_outcome() -> None:
    pending = PendingOutcomes()
    pending.add([attempt(1)])
    pending.next_batch(Database(), 0.0)
    fail(pending, alone=True, timed_out=True)
    assert ids(pending.next_batch(Database(), FIRST_SLOW_DELAY)) == [1]
    pending.answered()
    fail(pending, timed_out=True, now=FIRST_SLOW_DELAY)
    assert (pending.attempts, pending.next_batch(Database(), 2 * FIRST_SLOW_DELAY)) == ([], [])
