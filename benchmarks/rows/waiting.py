"""How long a job waits for an idle worker. Worker and database are on one machine, so they have the same clock."""

import statistics
import time
from datetime import timedelta
from typing import Any

from django.db import connection, transaction

from django_skipqueue.models import Job

from .. import jobs
from ..figures import Figures, percentile
from ..sizes import Sizes
from ..workers import running_worker, wait_until


def latency(sizes: Sizes) -> Figures:
    """Time from the call of `.defer()` to the first line of the task, on an idle worker."""
    called = {}
    with running_worker():
        _wait_until_worker_is_ready()
        for _ in range(min(sizes.jobs, 300)):
            now = time.time()
            called[jobs.clock.defer().pk] = now
            time.sleep(0.02)
        wait_until(_is_empty)
    results = Job.objects.filter(pk__in=called).values_list("pk", "result")
    return _percentiles([started - called[pk] for pk, started in results if started])


def lateness(sizes: Sizes) -> Figures:
    """Scheduled jobs, due one after the other over a minute: delay of their starts."""
    with running_worker():
        _wait_until_worker_is_ready()
        with transaction.atomic(), connection.cursor() as cursor:
            ids = jobs.clock.using(run_after=timedelta(days=1)).defer_many([()] * sizes.scheduled)
            cursor.execute(
                "UPDATE skipqueue_job SET run_after = clock_timestamp()"
                " + make_interval(secs => 3 + (id - %s) * %s::float8) WHERE id = ANY (%s)",
                [ids[0], sizes.span / sizes.scheduled, ids],
            )
        wait_until(_is_empty, seconds=sizes.span + 60)
    started = Job.objects.filter(pk__in=ids).values_list("run_after", "result")
    return _percentiles([result - due.timestamp() for due, result in started if result])


def lone_scheduled(sizes: Sizes) -> Figures:
    """Jobs scheduled one at a time: delay of their starts."""
    late = []
    with running_worker():
        _wait_until_worker_is_ready()
        for number in range(sizes.lone):
            delay = timedelta(seconds=0.1 + 1.4 * number / sizes.lone)
            job = jobs.clock.using(run_after=delay).defer()
            wait_until(_is_empty)
            started: Any = Job.objects.values_list("result", flat=True).get(pk=job.pk)
            late.append(started - job.run_after.timestamp())
    return _percentiles(late)


def _wait_until_worker_is_ready() -> None:
    wait_until(lambda: jobs.clock.defer() and Job.objects.completed().exists())
    wait_until(_is_empty)


def _is_empty() -> bool:
    return not Job.objects.unfinished().exists()


def _percentiles(seconds: list[float]) -> Figures:
    return {"ms p50": statistics.median(seconds) * 1000, "ms p99": percentile(seconds, 0.99) * 1000}
