"""Jobs with limits and sequences: how long they wait, and how fast they are drained, beside plain jobs."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from django.db import connection

from django_skipqueue.models import Job

from .. import jobs
from ..databases import connect
from ..figures import Figures
from ..sizes import Sizes
from ..workers import drain, is_empty, running_worker, wait_until

DEAD = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, lease, run_after, enqueued_at, limit_key, limit_kind, capacity
)
SELECT
    'default', %(task)s, '[0]', '{}', 'blocked', 'limit', 0, now() - interval '1 day', now(),
    %(key)s, %(kind)s, %(capacity)s
FROM generate_series(1, %(count)s)
"""
"""Inserts jobs with the limit key of the argument 0, which are later updated, so that dead rows remain."""

STEPS = (
    "status = 'queued', gate = NULL",
    "status = 'running', locked_at = now(), started_at = now()",
    "status = 'completed', locked_at = NULL, finished_at = now()",
)
"""The updates of a job from queued to completed. Each leaves a dead row."""

BLOCKED = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, lease, attempts, run_after, enqueued_at, limit_key, limit_kind,
    capacity
)
SELECT
    'default', 'benchmarks.jobs.limited', '[0]', '{}', CASE WHEN n <= 1000 THEN 'scheduled' ELSE 'blocked' END,
    CASE WHEN n > 1000 THEN 'limit' END, 1, CASE WHEN n <= 1000 THEN 1 ELSE 0 END, now() + interval '1 day', now(),
    'sequence:held ' || n %% 1000, 'halting', 1
FROM generate_series(1, %(count)s) AS n
"""
"""In each of 1,000 sequences the first job waits for its second attempt, and the other jobs wait for the first."""


def limits_latency(sizes: Sizes) -> Figures:
    """Time to the first line of a job with a limit, and from its predecessor's end in a sequence ÷ a plain job's."""
    return {
        **_latencies(sizes, ", old snapshot", is_snapshot_open=True),
        **_latencies(sizes, ""),
        **_latencies(sizes, ", 2 processes", processes=2),
        **_latencies(sizes, ", 2 machines", machines=2),
    }


def _latencies(
    sizes: Sizes, suffix: str, *, processes: int = 1, machines: int = 1, is_snapshot_open: bool = False
) -> Figures:
    with ExitStack() as started:
        if is_snapshot_open:
            started.enter_context(_old_snapshot(sizes.dead))
        for number in range(machines):
            started.enter_context(running_worker("--processes", str(processes), "--name", f"m{number}"))
        wait_until(lambda: jobs.clock.defer() and Job.objects.completed().filter(task=jobs.clock.name).exists())
        wait_until(is_empty)
        count = min(sizes.jobs, 200)
        waits: dict[str, list[float]] = {"plain": [], "limited": []}
        called: dict[str, dict[int, float]] = {"plain": {}, "limited": {}}
        for _ in range(count):
            for kind in called:
                now = time.time()
                job = jobs.clock.defer() if kind == "plain" else jobs.limited.defer(0)
                called[kind][job.pk] = now
                time.sleep(0.02)
        wait_until(is_empty)
        for kind, times in called.items():
            started_at: dict[int, Any] = dict(Job.objects.filter(pk__in=times).values_list("pk", "result"))
            waits[kind] = [started_at[pk] - called_at for pk, called_at in times.items()]
        plain, limited = (statistics.median(waits[kind]) for kind in called)
        ids = jobs.in_sequence.defer_many([(0,)] * count)
        wait_until(is_empty)
        spans: list[Any] = list(Job.objects.filter(pk__in=ids).order_by("pk").values_list("result", flat=True))
        gaps = [start - end for (_, end), (start, _) in pairwise(spans)]
    successor = statistics.median(gaps)
    return {
        f"ms plain{suffix}": plain * 1000,
        f"limited ÷ plain{suffix}": limited / plain,
        f"successor ÷ plain{suffix}": successor / plain,
    }


def limits(sizes: Sizes) -> Figures:
    """Drains of jobs with limits and sequences ÷ plain ones; a plain one beside blocked jobs ÷ without."""
    plain = drain(jobs.noop, sizes.jobs)["jobs/s"]
    many = _drain(jobs.limited_noop, sizes.jobs, 1_000)
    few = _drain(jobs.limited_noop, sizes.jobs, 50)
    sequences = _drain(jobs.noop_in_sequence, sizes.jobs, 1_000)
    without = [_plain(sizes)]
    with connection.cursor() as cursor:
        cursor.execute(BLOCKED, {"count": sizes.blocked})
    beside = [_plain(sizes) for _ in range(3)]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM skipqueue_job WHERE limit_key IS NOT NULL")
    without += [_plain(sizes) for _ in range(2)]
    return {
        "jobs/s plain": plain,
        "jobs/s of 1,000 keys": many,
        "of 1,000 keys ÷ plain": many / plain,
        "of 50 keys ÷ plain": few / plain,
        "sequences of 1,000 keys ÷ plain": sequences / plain,
        "plain beside blocked ÷ without": statistics.median(beside) / statistics.median(without),
    }


def one_key(sizes: Sizes) -> Figures:
    """The jobs of one key alone: how many a second, and the share of a limit of 5 that jobs of 10 ms use."""
    empty, short = sizes.jobs // 10, sizes.jobs // 25
    one, four = (_drain(jobs.limited_noop, empty, 1, "--processes", number) for number in ("1", "4"))
    in_one = _drain(jobs.limited_ten_ms, short, 1, "--concurrency", "32")
    in_four = _drain(jobs.limited_ten_ms, short, 1, "--concurrency", "8", "--processes", "4")
    return {
        "jobs/s": one,
        "4 processes ÷ 1": four / one,
        "use of a limit": in_one * 0.01 / 5,
        "use of a limit, 4 processes": in_four * 0.01 / 5,
    }


@contextmanager
def _old_snapshot(count: int) -> Iterator[None]:
    """Make dead rows of this many completed jobs of the measured keys. An open snapshot prevents their removal."""
    with connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM skipqueue_worker")
        with connection.cursor() as cursor:
            for call, kind in ((jobs.limited, "concurrency"), (jobs.in_sequence, "halting")):
                key = call.encoded((0,), {}).columns["limit_key"]
                values = {"key": key, "kind": kind, "capacity": 2, "count": count, "task": call.name}
                cursor.execute(DEAD, values)
                for step in STEPS:
                    cursor.execute(f"UPDATE skipqueue_job SET {step} WHERE limit_key = %s", [key])
            cursor.execute("ANALYZE skipqueue_job")
        yield


class _Keyed:
    """Stands for a task. It gives its jobs this number of keys in turn."""

    def __init__(self, task: Any, keys: int) -> None:
        self._task = task
        self._keys = keys

    def defer_many(self, calls: list[tuple[int]]) -> None:
        """Defer a job for each number. Its key is the number modulo the number of keys."""
        self._task.defer_many([(number % self._keys,) for (number,) in calls])


def _drain(task: Any, count: int, keys: int, *options: str) -> float:
    return drain(_Keyed(task, keys), count, *options)["jobs/s"]


def _plain(sizes: Sizes) -> float:
    return drain(jobs.noop, sizes.jobs, "--queues", "default")["jobs/s"]
