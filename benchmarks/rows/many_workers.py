"""The cost of idle workers, and of a job that each of many idle workers could run."""

import time
from contextlib import ExitStack

import psutil
from django.db import connection

from django_skipqueue.models import Job, Worker

from .. import jobs
from ..databases import server, transactions
from ..figures import Figures, percentile
from ..sizes import Sizes
from ..workers import running_worker, wait_until
from .cost import cpu_seconds

SECONDS_UNTIL_COUNTED = 12.0
"""Seconds after which an idle session has reported all its transactions to the statistics."""

SECONDS_BETWEEN_JOBS = 0.02


def one_worker(sizes: Sizes) -> Figures:
    """One worker that is idle; then jobs come, 20 ms apart."""
    return _idle_then_busy(sizes, machines=1, processes=1)


def eight_workers(sizes: Sizes) -> Figures:
    """Idle, then busy, with 8 workers of one `runworker`."""
    return _idle_then_busy(sizes, machines=1, processes=8)


def many_workers(sizes: Sizes) -> Figures:
    """Idle, then busy, with 24 workers of one `runworker`."""
    return _idle_then_busy(sizes, machines=1, processes=24)


def eight_machines(sizes: Sizes) -> Figures:
    """Idle, then busy, with 8 `runworker`, as on 8 machines, of one worker each."""
    return _idle_then_busy(sizes, machines=8, processes=1)


def _idle_then_busy(sizes: Sizes, *, machines: int, processes: int) -> Figures:
    name = connection.settings_dict["NAME"]
    count = min(sizes.jobs, 500)
    with ExitStack() as started:
        supervisors = [
            started.enter_context(running_worker("--processes", str(processes), "--name", f"m{number}"))
            for number in range(machines)
        ]
        wait_until(lambda: Worker.objects.count() == machines * processes)
        connection.close()
        time.sleep(SECONDS_UNTIL_COUNTED + 3)
        began, before = time.monotonic(), transactions(name)
        time.sleep(sizes.idle)
        idle = (transactions(name) - before) / (time.monotonic() - began)
        began, before, used = time.monotonic(), transactions(name), _cpu_seconds(supervisors)
        called = {}
        for _ in range(count):
            now = time.time()
            called[jobs.clock.defer().pk] = now
            time.sleep(SECONDS_BETWEEN_JOBS)
        used = _cpu_seconds(supervisors) - used
        connection.close()
        time.sleep(SECONDS_UNTIL_COUNTED)
        busy = transactions(name) - before - idle * (time.monotonic() - began)
        rows = Job.objects.filter(pk__in=called).values_list("pk", "result")
        waits = sorted(started_at - called[pk] for pk, started_at in rows if started_at)
    if len(waits) != count:
        raise RuntimeError(f"{count - len(waits)} of {count} jobs were not completed.")
    return {
        "statements/s": idle,
        "transactions per job": busy / count,
        "ms of processor time per job": used / count * 1000,
        "ms p50": percentile(waits, 0.5) * 1000,
        "ms p99": percentile(waits, 0.99) * 1000,
    }


def _cpu_seconds(supervisors: list[psutil.Popen]) -> float:
    """Processor time of the supervisors, their workers, and the sessions of PostgreSQL."""
    with server() as connection:
        postmaster = psutil.Process(connection.info.backend_pid).parent()
        parents = [*supervisors, *([postmaster] if postmaster else [])]
        family = [process for parent in parents for process in (parent, *parent.children())]
        return sum(map(cpu_seconds, family))
