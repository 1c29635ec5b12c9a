"""What is measured: each function here is one row of the table, run in a process and a database of its own.

A row gets the number of jobs and returns its figures, by name. Times come from the database's clock where the database
knows them: `max(finished_at) - min(locked)` leaves the start of the worker's process out; the wall time would not.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from django.db import connection, transaction

from django_skipqueue.models import Job
from django_skipqueue.outcomes import COMPLETED, Settlement

from . import jobs

Figures = dict[str, float]

CLAIM_SIZE = 500


def drain(count: int) -> Figures:
    """`runworker` with no options but --drain, a `def` task."""
    return _drain(jobs.noop, count)


def drain_two_processes(count: int) -> Figures:
    """The same with --processes 2."""
    return _drain(jobs.noop, count, "--processes", "2")


def drain_async(count: int) -> Figures:
    """An `async def` task, --concurrency 100."""
    return _drain(jobs.anoop, count, "--concurrency", "100")


def floor(count: int) -> Figures:
    """The same claim and settle statements in a bare loop: no worker, no task."""
    _fill(jobs.noop, count)
    queue = Job.objects.all()
    held: list[Settlement] = []
    started = time.perf_counter()
    while True:
        _, claimed = queue.settle_and_claim(held, queue_names=["default"], limit=CLAIM_SIZE, worker_id="floor")
        held = [Settlement(job.id, job.lease, COMPLETED) for job in claimed]
        if not held:
            return {"jobs/s": count / (time.perf_counter() - started)}


def ten_ms(count: int) -> Figures:
    """Tasks of 10 ms, --concurrency 50: the ideal is 5,000 jobs/s."""
    figures = _drain(jobs.ten_ms, min(count, 20_000), "--concurrency", "50")
    return {**figures, "share of the ideal": figures["jobs/s"] / 5_000}


def defer(count: int) -> Figures:
    """`.defer()` in transactions of one, beside a bare INSERT of the same columns by the ORM."""
    rounds = min(count, 2_000)
    ours = _rate(rounds, jobs.noop.defer)
    bare = _rate(
        rounds,
        lambda number: Job.objects.create(queue_name="bare", task="bare", args=[number], kwargs={}, status="queued"),
    )
    return {"jobs/s": ours, "bare create/s": bare, "ratio": ours / bare}


def defer_in_transaction(count: int) -> Figures:
    """`.defer()` within one transaction: without the price of a commit for each."""
    rounds = min(count, 10_000)
    with transaction.atomic():
        return {"jobs/s": _rate(rounds, jobs.noop.defer)}


def defer_many(count: int) -> Figures:
    """All jobs in one call."""
    calls = [(number,) for number in range(count)]
    started = time.perf_counter()
    jobs.noop.defer_many(calls)
    return {"jobs/s": count / (time.perf_counter() - started)}


def latency(count: int) -> Figures:
    """From the call of `.defer()` to the first line of the task, on an idle worker, in milliseconds."""
    rounds = min(count, 300)
    with subprocess.Popen(_runworker("-v", "0"), stdin=subprocess.DEVNULL) as worker:
        _wait_until(lambda: jobs.clock.defer() and Job.objects.completed().exists())
        _wait_until(lambda: not Job.objects.alive().exists())
        called = {}
        for _ in range(rounds):
            now = time.time()
            called[jobs.clock.defer().pk] = now
            time.sleep(0.02)
        _wait_until(lambda: not Job.objects.alive().exists())
        worker.terminate()
    results = Job.objects.filter(pk__in=called).values_list("pk", "result")
    waits = sorted((started - called[pk]) * 1000 for pk, started in results)
    return {"p50 ms": statistics.median(waits), "p99 ms": waits[int(len(waits) * 0.99)]}


ROWS: dict[str, Callable[[int], Figures]] = {
    row.__name__.replace("_", "-"): row
    for row in (
        drain,
        drain_two_processes,
        drain_async,
        floor,
        ten_ms,
        defer,
        defer_in_transaction,
        defer_many,
        latency,
    )
}


def _fill(task: object, count: int) -> None:
    for start in range(0, count, 50_000):
        task.defer_many([(number,) for number in range(start, min(start + 50_000, count))])  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE skipqueue_job")


def _drain(task: object, count: int, *options: str) -> Figures:
    _fill(task, count)
    subprocess.run(_runworker("--drain", *options), check=True, stderr=subprocess.DEVNULL)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE status = 'completed'),"
            " extract(epoch FROM max(finished_at) - min(started_at))::float8, count(DISTINCT finished_at)"
            " FROM skipqueue_job"
        )
        completed, seconds, settles = cursor.fetchone()
    if completed != count:
        raise RuntimeError(f"{count - completed} of {count} jobs were not completed.")
    return {"jobs/s": count / seconds, "transactions per 1,000 jobs": settles / count * 1000}


def _runworker(*options: str) -> list[str]:
    return [sys.executable, "-m", "django", "runworker", *options]


def _rate(rounds: int, call: Callable[[int], object]) -> float:
    started = time.perf_counter()
    for number in range(rounds):
        call(number)
    return rounds / (time.perf_counter() - started)


def _wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("The worker did not do what was waited for.")
        time.sleep(0.05)
