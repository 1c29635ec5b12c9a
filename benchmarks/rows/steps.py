"""Steps: what a record costs, what jobs that sleep or wait cost others, and how soon a signal has its job go on."""

import statistics
import time
from functools import partial
from typing import Any

from django.db import connection, transaction

from django_skipqueue.models import Job, JobStep

from .. import jobs, workers
from ..figures import Figures
from ..sizes import Sizes
from ..workers import is_empty, running_worker, wait_until
from .tables import FILL

COMMITS = 300
"""Commits of one row, and recorded steps, that are timed."""

FILL_STEPS = """
INSERT INTO skipqueue_step (job_id, name, kind, number, attempt, started_at, wakes_at, is_waiting)
SELECT id, 'wait', %(kind)s, 1, 1, now(), now() + interval '1 day', CASE WHEN %(kind)s = 'wait' THEN true END
FROM skipqueue_job
WHERE queue_name = 'between steps'
"""

BLOCK = """
UPDATE skipqueue_job SET status = 'blocked', gate = 'held', held = true WHERE queue_name = 'between steps'
"""


def steps(sizes: Sizes) -> Figures:
    """A recorded step ÷ a durable commit of one row; steps a second in one worker, and jobs of ten steps."""
    commit = _seconds_of_a_commit()
    job = jobs.in_steps.defer(COMMITS)
    with running_worker("--concurrency", "1"):
        wait_until(lambda: Job.objects.filter(pk=job.pk, status="completed").exists())
    step = _result(job.pk) / COMMITS
    count = max(sizes.jobs // 50, 20)
    of_ten = workers.drain(jobs.ten_steps, count, "--queues", "default")["jobs/s"]
    return {
        "us of a step": step * 1e6,
        "us of a commit": commit * 1e6,
        "step ÷ commit": step / commit,
        "steps/s in a thread": 1 / step,
        "jobs of ten steps/s": of_ten,
    }


def between_steps(sizes: Sizes) -> Figures:
    """A drain beside jobs that sleep, and jobs that wait for signals ÷ one without."""
    figures: Figures = {}
    without = _median_rate(sizes)
    for kind in ("sleep", "wait"):
        number = min(sizes.future, 100_000)
        values: dict[str, str | int] = {"status": "scheduled", "delay": "1 day", "count": number}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(FILL, {"queue_name": "between steps", **values})
            cursor.execute(FILL_STEPS, {"kind": kind})
            if kind == "wait":
                cursor.execute(BLOCK)
        workers.settle_down()
        figures[f"beside {kind} ÷ without"] = _median_rate(sizes) / without
        JobStep.objects.all().delete()
        Job.objects.filter(queue_name="between steps").delete()
    return figures


def signal_latency(sizes: Sizes) -> Figures:
    """From the call of `job.signal()` to the next line of the task ÷ that from the call of `.defer()`."""
    deferred, signalled = [], []
    with running_worker():
        wait_until(lambda: jobs.clock.defer() and Job.objects.completed().exists())
        wait_until(is_empty)
        for _ in range(min(sizes.jobs, 100)):
            began = time.time()
            plain = jobs.clock.defer()
            wait_until(partial(_is_completed, plain.pk))
            deferred.append(_result(plain.pk) - began)
            waiting = jobs.waits.defer()
            wait_until(Job.objects.filter(pk=waiting.pk, status="blocked").exists)
            began = time.time()
            waiting.signal("go")
            wait_until(partial(_is_completed, waiting.pk))
            signalled.append(_result(waiting.pk) - began)
    plain_ms, signal_ms = (statistics.median(each) * 1000 for each in (deferred, signalled))
    return {"ms p50": signal_ms, "ms p50 of defer": plain_ms, "signal ÷ defer": signal_ms / plain_ms}


def _seconds_of_a_commit() -> float:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE one_row (id bigint PRIMARY KEY, value jsonb)")
        started = time.perf_counter()
        for number in range(COMMITS):
            cursor.execute("INSERT INTO one_row VALUES (%s, '1')", [number])
        seconds = (time.perf_counter() - started) / COMMITS
        cursor.execute("DROP TABLE one_row")
    return seconds


def _median_rate(sizes: Sizes) -> float:
    rates = [workers.drain(jobs.noop, sizes.jobs, "--queues", "default")["jobs/s"] for _ in range(sizes.rounds)]
    return statistics.median(rates)


def _is_completed(pk: int) -> bool:
    return Job.objects.filter(pk=pk, status="completed").exists()


def _result(pk: int) -> float:
    result: Any = Job.objects.values_list("result", flat=True).get(pk=pk)
    return float(result)
