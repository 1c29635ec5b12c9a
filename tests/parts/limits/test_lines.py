"""`Line`: the jobs of one limit in one worker. As many run as the worker has permits, and the others wait in line."""

import time
from typing import Any

import pytest

from django_skipqueue.parts.limits.exchange import Line, Lines
from django_skipqueue.values.records import ClaimedJob


def claimed_job(id: int, key: str | None = "k") -> ClaimedJob:
    return ClaimedJob(id=id, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
                      priority=0, run_after=0.0, locked_at=0.0, metadata="{}", permit_key=key)  # fmt: skip


@pytest.fixture
def line_with_two_permits() -> Line:
    """The line of a worker with two permits: two jobs run, and three jobs wait."""
    line = Line()
    for id in range(5):
        line.add_lease(claimed_job(id), permits=1 if id < 2 else 0)
        assert line.enter(claimed_job(id)) == ([claimed_job(id)] if id < 2 else [])
    return line


def test_when_a_job_ends_the_next_job_in_line_begins(line_with_two_permits: Line) -> None:
    next_jobs = [line_with_two_permits.leave((id, 1)) for id in range(5)]
    assert next_jobs == [claimed_job(2), claimed_job(3), claimed_job(4), None, None]
    assert line_with_two_permits.enter(claimed_job(5)) == [claimed_job(5)], "both permits are free"


def test_a_permit_is_lost_with_the_last_lease_that_covers_it(line_with_two_permits: Line) -> None:
    line_with_two_permits.remove_leases([(0, 1), (1, 1), (2, 1)])
    assert line_with_two_permits.permits == 2
    line_with_two_permits.remove_leases([(3, 1)])
    assert line_with_two_permits.permits == 1
    assert line_with_two_permits.leave((0, 1)) is None, "the other running job has the permit"
    assert line_with_two_permits.leave((1, 1)) == claimed_job(2)


def test_permits_are_kept_if_as_many_new_leases_replace_the_lost_leases(line_with_two_permits: Line) -> None:
    for id in range(5, 8):
        line_with_two_permits.add_lease(claimed_job(id), permits=0)
    line_with_two_permits.remove_leases([(id, 1) for id in range(5)])
    assert line_with_two_permits.permits == 2


def test_a_lease_that_may_have_been_settled_does_not_cover_a_permit(line_with_two_permits: Line) -> None:
    line_with_two_permits.remove_leases([], unknown=[(id, 1) for id in range(4)])
    assert line_with_two_permits.permits == 1
    line_with_two_permits.remove_leases([(id, 1) for id in range(4)])
    assert line_with_two_permits.permits == 1
    line_with_two_permits.remove_leases([(4, 1)])
    assert line_with_two_permits.permits == 0


def test_waiting_jobs_are_withdrawn_if_no_job_has_begun_for_a_while(line_with_two_permits: Line) -> None:
    assert line_with_two_permits.withdraw(since=time.monotonic() - 60) == []
    assert line_with_two_permits.withdraw(since=time.monotonic()) == [claimed_job(2), claimed_job(3), claimed_job(4)]
    assert line_with_two_permits.leave((0, 1)) is None


def test_a_job_that_is_taken_back_before_it_begins_frees_its_permit(line_with_two_permits: Line) -> None:
    line_with_two_permits.remove_running((0, 1))
    assert line_with_two_permits.enter(claimed_job(9)) == [claimed_job(2)]


def test_jobs_without_a_limit_do_not_wait() -> None:
    lines = Lines()
    unlimited_job = claimed_job(1, key=None)
    lines.claimed([unlimited_job])
    assert lines.enter(unlimited_job) == [unlimited_job]
    assert lines.follow(unlimited_job) is None
    lines.gone([unlimited_job])


def test_a_key_is_forgotten_with_its_last_lease() -> None:
    lines = Lines()
    lines.claimed([claimed_job(1)])
    lines.claimed([claimed_job(2)], ahead=True)
    assert lines.enter(claimed_job(1)) == [claimed_job(1)]
    assert lines.enter(claimed_job(2)) == []
    assert lines.has_waiting
    lines.unknown([claimed_job(1)])
    lines.gone([claimed_job(1), claimed_job(2)])
    assert lines.get("k") is None
    next_job: Any = lines.follow(claimed_job(1))
    assert next_job is None


def test_the_late_end_of_a_settled_job_does_not_free_the_permit_of_another_job() -> None:
    """The thread of a job may report its end late: after other jobs of the key were claimed."""
    lines = Lines()
    lines.claimed([claimed_job(1)])
    lines.enter(claimed_job(1))
    lines.gone([claimed_job(1)])
    lines.claimed([claimed_job(2)])
    lines.claimed([claimed_job(3)], ahead=True)
    assert lines.enter(claimed_job(2)) == [claimed_job(2)]
    assert lines.follow(claimed_job(1)) is None
    assert lines.enter(claimed_job(3)) == [], "the running job has the permit"
    assert lines.follow(claimed_job(2)) == claimed_job(3)
