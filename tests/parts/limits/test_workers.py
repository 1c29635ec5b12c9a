"""Live workers: no key ever exceeds its limit, sequences run in order, and no free permit is forgotten."""

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.limits.sql import LOCK_KEYS

from ...app import jobs
from ...app.limits.jobs import continuing_sequence, halting_sequence, two_at_once, two_per_account
from ...app.models import Ledger
from ...app.sessions import connect
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses, workers
from ...harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]
RunWorker = Callable[..., ManagePy]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)

SELECT_HELD_PERMITS = """
SELECT
    limit_key,
    max(capacity) AS capacity,
    count(*) AS held_permits,
    count(*) FILTER (WHERE status = 'running') AS running_jobs
FROM skipqueue_job
WHERE limit_key IS NOT NULL AND status IN ('queued', 'running') AND gate IS DISTINCT FROM 'ahead'
GROUP BY limit_key
"""


class PermitWitness:
    """Reads again and again how many jobs of each key hold a permit. A statement sees one moment of the database."""

    def __init__(self, most: int | None = None) -> None:
        self.most_permits = most
        self.number_of_reads = 0
        self.most_running: Counter[str] = Counter()
        self.violations: list[tuple[Any, ...]] = []

    def read(self, session: Any) -> None:
        for key, capacity, held, running in session.execute(SELECT_HELD_PERMITS).fetchall():
            self.most_running[key] = max(self.most_running[key], running)
            if held > (self.most_permits or capacity):
                self.violations.append((key, capacity, held))
        self.number_of_reads += 1


@contextmanager
def reading_repeatedly(witness: Any) -> Iterator[None]:
    """While the block runs, a thread calls `witness.read` again and again, with pauses for other threads."""
    is_over = threading.Event()

    def read_until_over() -> None:
        with connect() as session:
            while not is_over.wait(0.002):
                witness.read(session)

    thread = threading.Thread(target=read_until_over, daemon=True)
    thread.start()
    try:
        wait_until(lambda: witness.number_of_reads, "the thread has read once")
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def no_key_exceeds_its_limit(most: int | None = None) -> Iterator[PermitWitness]:
    """Fail if a key exceeds `most` permits (by default its own limit) at any moment while the block runs."""
    witness = PermitWitness(most)
    with reading_repeatedly(witness):
        yield witness
    assert witness.number_of_reads > 10
    assert not witness.violations


def most_at_once_by_key() -> dict[str, int]:
    """Return how many attempts of each key ran at once at most, by the order of the rows that they wrote."""
    running_ids: defaultdict[str, set[int]] = defaultdict(set)
    most_at_once: Counter[str] = Counter()
    for entry, job_id in Ledger.objects.filter(job_id__gt=0).order_by("id").values_list("entry", "job_id"):
        assert job_id
        event, key, _ = entry.split()
        running_ids[key] = running_ids[key] | {job_id} if event == "start" else running_ids[key] - {job_id}
        most_at_once[key] = max(most_at_once[key], len(running_ids[key]))
    return dict(most_at_once)


def numbers_in_order(key: str, event: str = "end") -> list[int]:
    """Return the numbers of the jobs of a key, in the order in which the jobs ended (or started)."""
    entries = Ledger.objects.filter(entry__startswith=f"{event} {key} ").order_by("id").values_list("entry", flat=True)
    return [int(entry.removeprefix(f"{event} {key} ")) for entry in entries]


def test_a_drain_runs_all_jobs_within_their_limits(worker_thread: StartWorker) -> None:
    two_at_once.defer_many([(f"k{number % 5}", number) for number in range(300)])
    with no_key_exceeds_its_limit():
        drains = [worker_thread(drain=True, concurrency=8) for _ in range(3)]
        for drain in drains:
            drain.wait()
    assert statuses() == {"completed": 300}
    assert max(most_at_once_by_key().values()) == 2


def test_a_drain_runs_sequences_in_order(worker_thread: StartWorker) -> None:
    halting_sequence.defer_many([(f"k{number % 7}", number) for number in range(210)])
    with no_key_exceeds_its_limit():
        drains = [worker_thread(drain=True, concurrency=8) for _ in range(3)]
        for drain in drains:
            drain.wait()
    assert statuses() == {"completed": 210}
    for key in range(7):
        assert numbers_in_order(f"k{key}") == list(range(key, 210, 7))
    assert set(most_at_once_by_key().values()) == {1}


def test_a_job_that_is_retried_holds_its_sequence(runworker: RunWorker) -> None:
    halting_sequence.defer_many([("a", number, 3 if number == 1 else 0) for number in range(4)])
    runworker("--concurrency", "4")
    wait_for_statuses(completed=4)
    assert numbers_in_order("a") == [0, 1, 2, 3]
    assert numbers_in_order("a", "start") == [0, 1, 1, 1, 2, 3]


def test_a_worker_alone_lets_a_blocked_job_in_without_any_sweep(worker_thread: StartWorker) -> None:
    """No supervisor runs here. Only enqueues admit jobs, and the worker does, in the round trip in which it settles."""
    worker = worker_thread(poll_interval=HOUR, concurrency=2)
    wait_until(lambda: worker.listens)
    two_per_account.defer_many([("a",)] * 50)
    wait_for_statuses(completed=50)
    continuing_sequence.defer_many([("a", number, number % 2) for number in range(20)])
    wait_for_statuses(completed=60, failed=10)


def test_a_key_that_another_session_has_locked_is_tried_again(worker_thread: StartWorker, gates: Any) -> None:
    worker = worker_thread(poll_interval=HOUR, concurrency=1)
    wait_until(lambda: worker.listens)
    with connect(autocommit=False) as other_session:
        key = halting_sequence.encoded(("a",), {}).columns["limit_key"]
        halting_sequence.defer("a", 0, seconds=0.3)
        wait_until(lambda: Job.objects.running().count() == 1)
        halting_sequence.defer_many([("a", number) for number in range(1, 4)])
        other_session.execute(LOCK_KEYS, {"ids": "{}", "keys": [key]})
        wait_for_statuses(completed=1, blocked=3)
    wait_for_statuses(completed=4)


def test_an_admitted_job_that_this_worker_does_not_serve_is_announced(worker_thread: StartWorker) -> None:
    first = worker_thread(poll_interval=HOUR, concurrency=1, queue_names=("a",))
    second = worker_thread(poll_interval=HOUR, concurrency=1, queue_names=("b",), id="v:1")
    wait_until(lambda: first.listens and second.listens)
    halting_sequence.using(queue_name="a").defer("x", 0, seconds=0.1)
    halting_sequence.using(queue_name="b").defer("x", 1)
    wait_for_statuses(completed=2)
    assert numbers_in_order("x") == [0, 1]


def wait_for_more_completed() -> None:
    wait_until(partial(has_completed_more_than, Job.objects.completed().count() + 10))


def queue_holds_at_most(number: int) -> bool:
    return Job.objects.filter(limit_key="queue:mail", status__in=["queued", "running"]).count() <= number


def have_run_at_once(witness: PermitWitness, number: int) -> bool:
    return max(witness.most_running.values(), default=0) >= number


@pytest.mark.parametrize("limits_in_turn", [(3, 1, 5), (None, 2, 1)], ids=["lowered and raised", "set later"])
def test_no_queue_exceeds_its_limit_while_the_limit_changes(
    runworker: RunWorker, limits_in_turn: tuple[int | None, ...]
) -> None:
    """A lower limit interrupts no running job: the number of running jobs falls until it has reached the limit."""
    skipqueue = {"QUEUES": {"mail": {"concurrency": limits_in_turn[0]}}}
    for _ in range(2):
        runworker("--processes", "2", "--concurrency", "3", "--queues", "mail", skipqueue=skipqueue)
    wait_until(lambda: len(workers(4)) == 4)
    with override_settings(SKIPQUEUE=skipqueue):
        jobs.slow.using(queue_name="mail").defer_many([(0.05,)] * 1_200)  # without a limit these jobs last for 5 s
    for limit in limits_in_turn[1:]:
        wait_for_more_completed()
        with override_settings(SKIPQUEUE=skipqueue):
            Queue.limit("mail", limit)
        wait_until(partial(queue_holds_at_most, limit or 0))
        with no_key_exceeds_its_limit(limit) as witness:
            wait_for_more_completed()
            wait_until(partial(have_run_at_once, witness, limit or 0), "all slots are used")
            wait_until(lambda: witness.number_of_reads > 10)
        assert max(witness.most_running.values()) == limit
    Queue.limit("mail", None)
    wait_for_statuses(completed=1_200)


def has_completed_more_than(number: int) -> bool:
    return Job.objects.completed().count() > number


def has_retried(ids: list[int]) -> bool:
    """Retry the discarded jobs by hand. Returns whether none is left.

    A verb skips locked rows, so one call may miss a job: if a worker's settle has waited for the cancel, the worker
    keeps the row locked for a round trip.
    """
    jobs_to_retry = Job.objects.filter(pk__in=ids)
    jobs_to_retry.retry()
    return not jobs_to_retry.filter(status="discarded").exists()


@pytest.mark.parametrize("task", ["limit", "sequence"])
def test_no_limit_is_exceeded_while_workers_are_killed(runworker: RunWorker, task: str) -> None:
    """Processes die at any line, an operator cancels and retries jobs, and in the end every job has run."""
    with no_key_exceeds_its_limit() as witness:
        running = [runworker("--processes", "2", "--concurrency", "4") for _ in range(2)]
        wait_until(lambda: len(workers(4)) == 4)
        for first_number in range(0, 240, 60):
            if task == "limit":
                two_at_once.defer_many(
                    [(f"k{number % 6}", number, 0.01) for number in range(first_number, first_number + 60)]
                )
            else:
                halting_sequence.defer_many(
                    [(f"k{number % 6}", number, 0, 0.005) for number in range(first_number, first_number + 60)]
                )
            wait_until(partial(has_completed_more_than, first_number))
            with suppress(ProcessLookupError):
                os.kill(workers(1)[0].pid, signal.SIGKILL)
            cancelled = list(Job.objects.running().values_list("pk", flat=True)[:2])
            Job.objects.filter(pk__in=cancelled).cancel()
            wait_until(partial(has_retried, cancelled))
        wait_for_statuses(completed=240, deadline=60)
        assert len(running) == 2
    assert witness.most_running


def test_a_death_between_the_settle_and_the_admission_loses_no_wake_up(runworker: RunWorker) -> None:
    """The test makes the rows that such a death leaves: no job of the key holds a permit, and all jobs are blocked."""
    halting_sequence.defer_many([("a", number) for number in range(3)])
    Job.objects.queued().update(status="blocked", gate="limit")
    runworker("--processes", "1")
    wait_for_statuses(completed=3)
    assert numbers_in_order("a") == [0, 1, 2]
