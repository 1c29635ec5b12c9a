"""`Lines`, the limited jobs of a worker: which jobs it wishes to claim ahead, and which outcomes free a permit."""

from typing import Any

import pytest

from django_skipqueue.parts.limits import exchange
from django_skipqueue.parts.limits.claim import AheadWish
from django_skipqueue.parts.limits.exchange import Lines
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob


def claimed_job(id: int, **fields: Any) -> ClaimedJob:
    values: dict[str, Any] = {"task": "t", "queue_name": "default", "permit_key": "k", **fields}
    return ClaimedJob(id=id, lease=1, args="[]", kwargs="{}", attempt=1, max_attempts=1, priority=0, run_after=0.0,
                      locked_at=0.0, metadata="{}", **values)  # fmt: skip


def completed_attempt(job: ClaimedJob) -> Attempt:
    return Attempt(job, COMPLETED, 0.0, 0.0, "w")


@pytest.fixture
def lines_with_two_jobs() -> Lines:
    """The lines of a worker with two jobs, which have permits of the key `k`."""
    lines = Lines()
    lines.claimed([claimed_job(1), claimed_job(2)])
    return lines


def test_a_worker_claims_ahead_as_many_jobs_as_have_just_ended(lines_with_two_jobs: Lines) -> None:
    ending = [completed_attempt(claimed_job(1)), completed_attempt(claimed_job(2))]
    (wish,) = lines_with_two_jobs.wishes(ending)
    assert wish == AheadWish("k", "t", "default", permits=2, most=2, leases=[(1, 1), (2, 1)])


def test_a_worker_claims_no_jobs_ahead_if_enough_jobs_wait_in_its_line(lines_with_two_jobs: Lines) -> None:
    for id in range(3, 6):
        lines_with_two_jobs.claimed([claimed_job(id)], ahead=True)
        lines_with_two_jobs.enter(claimed_job(id))
    for id in range(1, 3):
        lines_with_two_jobs.enter(claimed_job(id))
    assert lines_with_two_jobs.wishes([completed_attempt(claimed_job(1)), completed_attempt(claimed_job(2))]) == []


def test_a_worker_claims_no_jobs_ahead_if_the_jobs_are_long(
    lines_with_two_jobs: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CLAIM_AHEAD_SECONDS", -1.0)
    lines = Lines()
    lines.claimed([claimed_job(1)])
    assert lines.wishes([completed_attempt(claimed_job(1))]) == []


@pytest.mark.parametrize("changed_field", [{"task": "u"}, {"queue_name": "other"}])
def test_a_worker_claims_no_jobs_ahead_of_a_key_that_tasks_or_queues_share(
    lines_with_two_jobs: Lines, changed_field: dict[str, str]
) -> None:
    lines_with_two_jobs.claimed([claimed_job(3, **changed_field)])
    assert (
        lines_with_two_jobs.wishes(
            [completed_attempt(claimed_job(1)), completed_attempt(claimed_job(3, **changed_field))]
        )
        == []
    )


def test_a_worker_claims_no_jobs_ahead_without_a_permit_or_a_limit(lines_with_two_jobs: Lines) -> None:
    unlimited_job = claimed_job(3, permit_key=None)
    lines_with_two_jobs.claimed([unlimited_job])
    assert lines_with_two_jobs.wishes([completed_attempt(unlimited_job)]) == []
    lines_with_two_jobs.unknown([claimed_job(1), claimed_job(2)])
    assert lines_with_two_jobs.wishes([completed_attempt(claimed_job(1))]) == []


def test_an_outcome_frees_no_permit_that_another_job_of_the_worker_takes_over(lines_with_two_jobs: Lines) -> None:
    assert lines_with_two_jobs.keeps_permits([completed_attempt(claimed_job(1))]) == set()
    lines_with_two_jobs.claimed([claimed_job(3)], ahead=True)
    assert lines_with_two_jobs.keeps_permits([completed_attempt(claimed_job(1))]) == {(1, 1)}
    assert (
        lines_with_two_jobs.keeps_permits([completed_attempt(claimed_job(1)), completed_attempt(claimed_job(2))])
        == set()
    )


def test_every_outcome_frees_its_permit_after_a_reply_of_the_database_was_lost(lines_with_two_jobs: Lines) -> None:
    lines_with_two_jobs.unknown([claimed_job(1), claimed_job(2)])
    assert lines_with_two_jobs.keeps_permits([completed_attempt(claimed_job(1))]) == set()
