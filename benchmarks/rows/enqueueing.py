"""How fast jobs are deferred."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job, Worker

from .. import jobs
from ..figures import Figures
from ..sizes import Sizes
from ..workers import running_worker, wait_until

THREADS = 16


def defer(sizes: Sizes) -> Figures:
    """`.defer()`, each in a transaction of its own, ÷ a bare `create()` of the same columns."""
    return _compare_with_create(min(sizes.jobs, 2_000))


def defer_in_transaction(sizes: Sizes) -> Figures:
    """`.defer()` within one transaction ÷ a bare `create()` there."""
    with transaction.atomic():
        return _compare_with_create(min(sizes.jobs, 10_000))


def defer_many(sizes: Sizes) -> Figures:
    """All jobs in one call of `.defer_many()`."""
    calls = [(number,) for number in range(sizes.jobs)]
    started = time.perf_counter()
    jobs.noop.defer_many(calls)
    return {"jobs/s": sizes.jobs / (time.perf_counter() - started)}


KEYS = 1_000

POLICIES: dict[str, Any] = {
    "limit": jobs.limited_noop,
    "sequence": jobs.noop_in_sequence,
    "fair": jobs.fair_work,
    "rate": jobs.rated_slowly,
    "rate that lets all jobs in": jobs.rated,
    "unique": jobs.unique_noop,
}


def defer_many_by_policy(sizes: Sizes) -> Figures:
    """`.defer_many()` of jobs with a policy, of 1,000 keys: its time ÷ that of plain jobs, and to encode a call."""
    calls = [(number % KEYS,) for number in range(min(sizes.jobs, 20_000))]
    figures: Figures = {}
    for name, task in POLICIES.items():
        calls_of_task = [(number,) for number in range(len(calls))] if name == "unique" else calls
        pairs = [
            (_seconds_for_all(jobs.noop, calls), _seconds_for_all(task, calls_of_task)) for _ in range(sizes.rounds)
        ]
        figures[f"{name} ÷ plain"] = statistics.median(keyed / plain for plain, keyed in pairs)
    for name, task in {"plain": jobs.noop, **POLICIES}.items():
        figures[f"µs to encode, {name}"] = min(_encode_seconds(task, calls) for _ in range(sizes.rounds)) * 1e6
    return figures


def _seconds_for_all(task: Any, calls: list[tuple[int]]) -> float:
    started = time.perf_counter()
    task.defer_many(calls)
    seconds = time.perf_counter() - started
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE skipqueue_job, skipqueue_rate")
    return seconds


def _encode_seconds(task: Any, calls: list[tuple[int]]) -> float:
    """The processor time for each call of encoding it, before a statement is sent."""
    started = time.process_time()
    for call in calls:
        task.encoded(call, {})
    return (time.process_time() - started) / len(calls)


def queries(_sizes: Sizes) -> Figures:
    """What one `.defer()` asks of the database: in a transaction, and outside of one, with commit and NOTIFY."""
    jobs.noop.defer(0)
    with transaction.atomic(), CaptureQueriesContext(connection) as inside:
        jobs.noop.defer(1)
    with CaptureQueriesContext(connection) as in_all:
        jobs.noop.defer(2)
    return {"in the transaction": len(inside), "in all": len(in_all)}


def defer_in_threads(sizes: Sizes) -> Figures:
    """16 threads defer on 16 connections at once, ÷ bare inserts; with idle workers that listen, and without."""
    jobs_of_thread = min(sizes.jobs, 8_000) // THREADS
    bare, alone = _in_threads(_insert, jobs_of_thread), _in_threads(jobs.noop.defer, jobs_of_thread)
    with ExitStack() as started:
        for number in range(4):
            started.enter_context(running_worker("--queues", "other", "--name", f"m{number}"))
        wait_until(lambda: Worker.objects.count() == 4)
        listened = _in_threads(jobs.noop.defer, jobs_of_thread)
    return {"jobs/s": alone, "defer ÷ insert": alone / bare, "with 4 listeners ÷ without": listened / alone}


def _in_threads(call: Callable[[int], object], calls_of_thread: int) -> float:
    """Calls per second by all threads together, each on its own connection."""
    ready = Barrier(THREADS + 1)

    def run() -> None:
        connection.ensure_connection()
        ready.wait()
        for number in range(calls_of_thread):
            call(number)
        connection.close()

    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(run) for _ in range(THREADS)]
        ready.wait()
        started = time.perf_counter()
        for thread in running:
            thread.result()
    return THREADS * calls_of_thread / (time.perf_counter() - started)


def _insert(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts)"
            " VALUES ('bare', 'bare', %s::jsonb, '{}', 'queued', 0, 10)",
            [f"[{number}]"],
        )


def _compare_with_create(rounds: int) -> Figures:
    """Call `defer` and `create` alternately, so that other load affects both. Returns figures from the medians."""
    pairs = [(_seconds(jobs.noop.defer, number), _seconds(_create, number)) for number in range(-20, rounds)]
    ours, bare = (statistics.median(seconds) for seconds in zip(*pairs[20:], strict=True))
    return {"jobs/s": 1 / ours, "bare create()/s": 1 / bare, "defer ÷ create": bare / ours}


def _create(number: int) -> None:
    Job.objects.create(
        queue_name="bare",
        task="bare",
        args=[number],
        kwargs={},
        status="queued",
        priority=0,
        max_attempts=10,
        unique_key=None,
        metadata={},
    )


def _seconds(call: Callable[[int], object], number: int) -> float:
    started = time.perf_counter()
    call(number)
    return time.perf_counter() - started
