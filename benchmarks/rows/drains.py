"""How fast a worker empties a queue."""

import statistics

from django_skipqueue.models import Job

from .. import jobs, workers
from ..figures import Figures
from ..sizes import Sizes


def drain(sizes: Sizes) -> Figures:
    """`runworker --drain` without other options; a `def` task."""
    return workers.drain(jobs.noop, sizes.jobs)


def drain_two_processes(sizes: Sizes) -> Figures:
    """Jobs of `drain` with `--processes 2`."""
    return workers.drain(jobs.noop, sizes.jobs, "--processes", "2")


def drain_async(sizes: Sizes) -> Figures:
    """An `async def` task with `--concurrency 100`."""
    return workers.drain(jobs.anoop, sizes.jobs, "--concurrency", "100")


def ten_ms(sizes: Sizes) -> Figures:
    """Tasks that wait 10 ms, with `--concurrency 50`: share of the ideal of 5,000 jobs/s."""
    figures = workers.drain(jobs.ten_ms, min(sizes.jobs, 20_000), "--concurrency", "50")
    return {**figures, "of the ideal": figures["jobs/s"] / 5_000}


def one_at_a_time(sizes: Sizes) -> Figures:
    """Tasks of 5 ms with one read by the ORM, with `--concurrency 1`: time of a job beyond its task."""
    figures = workers.drain(jobs.five_ms, min(sizes.jobs, 1_000), "--concurrency", "1")
    task = statistics.fmean(ms for ms in Job.objects.values_list("result", flat=True) if ms)
    return {"ms overhead per job": 1000 / figures["jobs/s"] - task, "ms in the task": task}
