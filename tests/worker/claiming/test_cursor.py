"""`ClaimCursor`: a claim starts where the last one ended. A full scan, from the front, finds jobs before this place."""

from collections.abc import Callable

import pytest

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import ClaimedJob, QueuePosition
from django_skipqueue.worker import claiming as module
from django_skipqueue.worker.claiming import FULL_SCAN_SHARE, MAX_FULL_SCAN_PAUSE, ClaimCursor

from ...app import jobs
from ...app.models import Ledger
from ...app.sessions import Session
from ...app.waiting import wait_until
from ...harness.threads import WorkerThread

store = Store("default")

CLAIMED_JOB = ClaimedJob(
    id=1, lease=1, task="task", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
    priority=0, run_after=9.0, locked_at=9.0, metadata="{}", claim_seconds=0.02,
)  # fmt: skip
START = 100.0


def test_the_first_claim_is_made_from_the_front() -> None:
    assert ClaimCursor().start(START) == {}


def test_the_next_claim_starts_after_the_last_job_of_each_queue() -> None:
    cursor = ClaimCursor()
    cursor.start(START)
    batch = [CLAIMED_JOB, CLAIMED_JOB._replace(id=2), CLAIMED_JOB._replace(id=3, queue_name="mail", priority=7)]
    cursor.claimed(batch, after={}, took=0.03, now=START)
    after = cursor.start(START)
    assert after == {"default": QueuePosition(0, 9.0, 2), "mail": QueuePosition(-7, 9.0, 3)}
    cursor.claimed([CLAIMED_JOB._replace(id=5)], after=after, took=0.03, now=START)
    assert cursor.start(START) == {"default": QueuePosition(0, 9.0, 5), "mail": QueuePosition(-7, 9.0, 3)}


def test_a_newly_admitted_job_does_not_move_the_cursor_back() -> None:
    cursor = ClaimCursor()
    cursor.start(START)
    cursor.claimed([CLAIMED_JOB._replace(id=2)], after={}, took=0.03, now=START)
    after = cursor.start(START)
    cursor.claimed([CLAIMED_JOB._replace(priority=7)], after=after, took=0.03, now=START)
    assert cursor.start(START) == after == {"default": QueuePosition(0, 9.0, 2)}


def test_a_claim_from_the_front_forgets_how_far_each_queue_was_claimed() -> None:
    cursor = ClaimCursor()
    for queue_name, seconds_later in (("default", 0.0), ("mail", 2.0)):
        assert not cursor.start(START + seconds_later)
        cursor.claimed([CLAIMED_JOB._replace(queue_name=queue_name)], after={}, took=0.03, now=START + seconds_later)
    assert list(cursor.start(START + 2)) == ["mail"]


@pytest.mark.parametrize(
    ("batch", "scan_seconds"),
    [([CLAIMED_JOB, CLAIMED_JOB._replace(id=2, claim_seconds=0.03)], 0.02), ([], 0.03)],
    ids=["jobs", "none"],
)
def test_full_scans_take_at_most_their_share_of_the_time(batch: list[ClaimedJob], scan_seconds: float) -> None:
    cursor = ClaimCursor()
    cursor.start(START)
    cursor.claimed(batch, after={}, took=0.03, now=START)
    cursor.claimed([CLAIMED_JOB], after={"default": CLAIMED_JOB.position}, took=0.03, now=START + 0.1)
    pause = scan_seconds / FULL_SCAN_SHARE - scan_seconds
    assert cursor.due_at == pytest.approx(START + pause)
    assert cursor.start(START + pause - 0.01)  # not yet from the front
    assert not cursor.start(START + pause + 0.01)  # from the front


def test_only_one_full_scan_runs_at_a_time() -> None:
    cursor = ClaimCursor()
    cursor.start(START)
    cursor.claimed([CLAIMED_JOB], after={}, took=0.03, now=START)
    assert not cursor.start(START + 10)  # a full scan begins
    after = cursor.start(START + 10)  # meanwhile the next claim goes on after the position
    assert after == {"default": CLAIMED_JOB.position}
    cursor.claimed([CLAIMED_JOB._replace(id=2)], after={}, took=0.03, now=START + 10)
    cursor.claimed([CLAIMED_JOB._replace(id=3)], after=after, took=0.03, now=START + 10)
    assert cursor.start(START + 10) == {"default": QueuePosition(0, 9.0, 3)}
    assert cursor.due_at == pytest.approx(START + 10 + 0.02 / FULL_SCAN_SHARE - 0.02)


def test_an_older_claim_does_not_undo_a_full_scan() -> None:
    """A claim from the front found more urgent jobs than its limit. The next claim takes the remaining urgent jobs."""
    cursor = ClaimCursor()
    cursor.start(START)
    cursor.claimed([CLAIMED_JOB], after={}, took=0.03, now=START)
    assert not cursor.start(START + 10)  # a full scan begins
    after = cursor.start(START + 10)  # meanwhile an older claim goes on after the position
    urgent = CLAIMED_JOB._replace(id=2, priority=7)
    cursor.claimed([urgent], after={}, took=0.03, now=START + 10)
    cursor.claimed([CLAIMED_JOB._replace(id=3)], after=after, took=0.03, now=START + 10)
    assert cursor.start(START + 10) == {"default": urgent.position}


def test_a_broken_connection_does_not_repeat_a_failed_full_scan() -> None:
    cursor = ClaimCursor()
    cursor.full_scan_failed(10.0)
    due_at = cursor.due_at
    assert due_at > 10.0
    cursor.start_over()
    assert cursor.due_at == due_at
    cursor.claimed([], after={}, took=0.0, now=due_at)
    cursor.start_over()
    assert cursor.due_at == 0.0


def test_one_slow_full_scan_delays_the_next_by_at_most_the_maximum_pause() -> None:
    cursor = ClaimCursor()
    cursor.start(START)
    cursor.claimed([CLAIMED_JOB._replace(claim_seconds=7.0)], after={}, took=7.0, now=START)
    assert cursor.start(START + MAX_FULL_SCAN_PAUSE - 0.01)  # not yet from the front
    assert not cursor.start(START + MAX_FULL_SCAN_PAUSE)  # from the front


# With a worker that works through a backlog: each of its claims returns as many jobs as it asks for

BACKLOG = 30_000


# Each function prepares a job, and returns a function that makes it claimable before the position of the cursor.
def add_job_of_higher_priority() -> Callable[[], object]:
    return lambda: jobs.record.using(priority=1).defer(entry="found")


def commit_job_late() -> Callable[[], object]:
    session = Session()
    session.begin()
    session(jobs.record.defer, entry="found")

    def commit() -> None:
        session.commit()
        session.close()

    return commit


def release_job() -> Callable[[], object]:
    jobs.record.defer(entry="found")
    (job,) = Job.objects.claim(queue_names=["default"], worker_id="another")
    return job.release


def recover_job() -> Callable[[], object]:
    jobs.record.defer(entry="found")
    Job.objects.claim(queue_names=["default"], worker_id="another")
    return lambda: store.recover(worker_ids=["another"])


@pytest.mark.parametrize("prepare", [add_job_of_higher_priority, commit_job_late, release_job, recover_job])
def test_a_job_added_before_the_position_of_the_cursor_is_found_during_a_backlog(
    prepare: Callable[[], Callable[[], object]], worker_thread: Callable[..., WorkerThread]
) -> None:
    make_claimable = prepare()
    jobs.record.defer_many([{"entry": str(number)} for number in range(BACKLOG)])
    worker = worker_thread(listen=False, concurrency=1)
    wait_until(lambda: Ledger.objects.count() > 100)
    make_claimable()
    wait_until(lambda: Ledger.objects.filter(entry="found").exists())
    assert Job.objects.queued().exists()  # the backlog is not finished yet
    worker.stop(now=True)


def test_without_full_scans_a_job_before_the_position_stays_queued(
    worker_thread: Callable[..., WorkerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows that full scans are the reason why the test above finds the job."""
    monkeypatch.setattr(module, "FULL_SCAN_SHARE", 1e-9)
    monkeypatch.setattr(module, "MAX_FULL_SCAN_PAUSE", float("inf"))
    jobs.record.defer_many([{"entry": str(number)} for number in range(300)])
    worker_thread(listen=False, concurrency=1, poll_interval=0.1)
    wait_until(lambda: Ledger.objects.count() > 100)
    urgent = jobs.record.using(priority=1).defer(entry="found")
    wait_until(lambda: Job.objects.completed().count() == 300)
    urgent.refresh_from_db()
    assert urgent.status == "queued"
