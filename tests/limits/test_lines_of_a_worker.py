"""Which jobs a worker wants to claim ahead, and which of its outcomes free a permit."""

from typing import Any

import pytest

from django_skipqueue.parts.limits import exchange
from django_skipqueue.parts.limits.exchange import Lines
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob


def keyed(id: int, **fields: Any) -> ClaimedJob:
    values: dict[str, Any] = {"task": "t", "queue_name": "default", "permit_key": "k", **fields}
    return ClaimedJob(id=id, lease=1, args="[]", kwargs="{}", attempt=1, max_attempts=1, priority=0, run_after=0.0,
                      locked_at=0.0, metadata="{}", **values)  # fmt: skip


def attempt(job: ClaimedJob) -> Attempt:
    return Attempt(job, COMPLETED, 0.0, 0.0, "w")


@pytest.fixture
def lines() -> Lines:
    """The lines of a worker with two jobs, which have permits of the key `k`."""
    made = Lines()
    made.claimed([keyed(1), keyed(2)])
    return made


def test_a_worker_wants_as_many_jobs_as_have_just_ended(lines: Lines) -> None:
    ending = [attempt(keyed(1)), attempt(keyed(2))]
    (wish,) = lines.wishes(ending)
    assert wish == ("k", "t", "default", 2, 2, [(1, 1), (2, 1)])


def test_a_worker_wants_no_more_jobs_if_as_many_wait_already(lines: Lines) -> None:
    for id in range(3, 6):
        lines.claimed([keyed(id)], ahead=True)
        lines.enter(keyed(id))
    for id in range(1, 3):
        lines.enter(keyed(id))
    assert lines.wishes([attempt(keyed(1)), attempt(keyed(2))]) == []


def test_a_worker_wants_few_jobs_if_jobs_are_long(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CLAIM_AHEAD_SECONDS", -1.0)
    made = Lines()
    made.claimed([keyed(1)])
    assert made.wishes([attempt(keyed(1))]) == []


@pytest.mark.parametrize("other", [{"task": "u"}, {"queue_name": "other"}])
def test_a_worker_wants_no_jobs_of_a_key_that_tasks_or_queues_share(lines: Lines, other: dict[str, str]) -> None:
    lines.claimed([keyed(3, **other)])
    assert lines.wishes([attempt(keyed(1)), attempt(keyed(3, **other))]) == []


def test_a_worker_wants_no_jobs_without_a_permit_or_a_limit(lines: Lines) -> None:
    plain = keyed(3, permit_key=None)
    lines.claimed([plain])
    assert lines.wishes([attempt(plain)]) == []
    lines.unknown([keyed(1), keyed(2)])
    assert lines.wishes([attempt(keyed(1))]) == []


def test_an_outcome_frees_no_permit_that_another_job_of_the_worker_has(lines: Lines) -> None:
    assert lines.keeps_permits([attempt(keyed(1))]) == set()
    lines.claimed([keyed(3)], ahead=True)
    assert lines.keeps_permits([attempt(keyed(1))]) == {(1, 1)}
    assert lines.keeps_permits([attempt(keyed(1)), attempt(keyed(2))]) == set()


def test_after_a_lost_answer_every_outcome_frees_its_permit(lines: Lines) -> None:
    lines.unknown([keyed(1), keyed(2)])
    assert lines.keeps_permits([attempt(keyed(1))]) == set()
