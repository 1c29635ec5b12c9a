"""`Outbox`: outcomes wait until they are answered for, and one that is locked keeps no other."""

from collections.abc import Collection

import pytest

from django_skipqueue.outcomes import COMPLETED
from django_skipqueue.records import Attempt, ClaimedJob, Lease
from django_skipqueue.worker import outbox as module
from django_skipqueue.worker.outbox import Outbox


def attempt(id: int) -> Attempt:
    job = ClaimedJob(id, 1, "t", "default", "[]", "{}", 1, 1, 0, 0.0, 0.0, "{}")
    return Attempt(job, COMPLETED, 1.0, "w")


class Database:
    """Knows which rows are locked, and is asked as seldom as possible."""

    def __init__(self, *locked: int) -> None:
        self.locked = set(locked)
        self.asked: list[list[int]] = []

    def __call__(self, leases: Collection[Lease]) -> set[int]:
        self.asked.append([id for id, _ in leases])
        return self.locked.intersection(self.asked[-1])


def ids(attempts: list[Attempt]) -> list[int]:
    return [attempt.job.id for attempt in attempts]


@pytest.fixture
def outbox() -> Outbox:
    made = Outbox()
    made.add([attempt(1), attempt(2), attempt(3)])
    return made


def test_as_long_as_all_goes_well_nobody_is_asked(outbox: Outbox) -> None:
    database = Database(2)
    assert outbox.is_due(0)
    assert ids(outbox.to_send(database, 0)) == [1, 2, 3]
    assert len(outbox) == 3
    assert ids(outbox.answered()) == [1, 2, 3]
    assert (len(outbox), outbox.is_due(0), database.asked) == (0, False, [])


def test_without_an_answer_all_are_kept_and_those_that_are_locked_wait_aside(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    database = Database(2)
    outbox.to_send(database, 99.0)
    outbox.failed()
    assert len(outbox) == 3
    assert ids(outbox.to_send(database, 100.0)) == [1, 3]
    assert database.asked == [[1, 2, 3]]
    assert "the outcomes of 1 job yet, as somebody has the rows locked; the first is job #2" in caplog.text
    assert ids(outbox.answered()) == [1, 3]
    assert (len(outbox), outbox.leases()) == (1, {(2, 1)})
    assert not outbox.is_due(100.0)

    outbox.add([attempt(4)])
    assert ids(outbox.to_send(database, 100.5)) == [4]
    assert len(database.asked) == 1
    outbox.answered()

    assert outbox.next_look == 101.0
    assert outbox.is_due(101.0)
    assert outbox.to_send(database, 101.0) == []
    assert len(caplog.records) == 1, "it is told once"

    database.locked.clear()
    assert ids(outbox.to_send(database, 102.0)) == [2]
    assert outbox.next_look == float("inf")


def test_a_failure_with_nothing_to_send_is_no_reason_to_ask() -> None:
    outbox = Outbox()
    outbox.failed()
    assert outbox.next_look == float("inf")
    assert not outbox.is_due(0)


def test_whoever_fails_while_asking_loses_nothing(outbox: Outbox) -> None:
    def broken(leases: Collection[Lease]) -> set[int]:
        raise OSError("gone")

    outbox.failed()
    with pytest.raises(OSError, match="gone"):
        outbox.to_send(broken, 0.0)
    assert ids(outbox.to_send(Database(), 0.0)) == [1, 2, 3]
