"""The cost of a worker process: its start, its memory, its work while idle, and the import of the package."""

import os
import statistics
import subprocess
import sys
import time

import psutil
from django.db import connection

from django_skipqueue.models import Job, Worker

from .. import jobs
from ..databases import transactions, wait_until_unused
from ..figures import Figures
from ..sizes import Sizes
from ..workers import fill, running_worker, runworker, wait_until

WARM = 20_000
"""Jobs that a worker runs before its memory is measured first, so that connections are open and caches filled."""


def idle(sizes: Sizes) -> Figures:
    """A worker without jobs, and its supervisor. Counts transactions; while idle, each is one statement."""
    name = connection.settings_dict["NAME"]
    with running_worker() as supervisor:
        wait_until(Worker.objects.exists)
        connection.close()
        time.sleep(15)  # until the transactions of the start are in the statistics
        started, count, cpu = time.monotonic(), transactions(name), _cpu_seconds(supervisor)
        time.sleep(sizes.idle)
        seconds, used = time.monotonic() - started, _cpu_seconds(supervisor) - cpu
        count = transactions(name) - count
    wait_until_unused(name)
    return {"statements/s": count / seconds, "% of a core": used / seconds * 100}


def memory(sizes: Sizes) -> Figures:
    """Resident memory of a worker of the example project, and its growth."""
    fill(jobs.noop, sizes.memory + WARM)
    with running_worker(settings="benchmarks.shop") as supervisor:
        wait_until(lambda: Job.objects.completed().count() >= WARM)
        (worker,) = supervisor.children()
        before = worker.memory_info().rss
        wait_until(lambda: not Job.objects.unfinished().exists(), seconds=3600)
        after = worker.memory_info().rss
        parent = supervisor.memory_info().rss
    return {"MB": after / 1e6, "MB supervisor": parent / 1e6, "% growth": (after / before - 1) * 100}


def cold_start(_sizes: Sizes) -> Figures:
    """`runworker` in the example project, from the start of the process to the first claim."""
    spawned = []
    for number in range(5):
        jobs.noop.defer(number)
        spawned.append(time.time())
        subprocess.run(runworker("--drain", "--settings", "benchmarks.shop"), check=True, stderr=subprocess.DEVNULL)
    claimed = Job.objects.order_by("id").values_list("started_at", flat=True)
    waits = [moment.timestamp() - start for start, moment in zip(spawned, claimed, strict=True) if moment]
    return {"s": statistics.median(waits)}


def import_time(_sizes: Sizes) -> Figures:
    """What `django_skipqueue` adds to the imports of `django.setup()` with Django's PostgreSQL backend."""
    measured = [_import_ms("django_skipqueue") - _import_ms() for _ in range(5)]
    return {"ms": statistics.median(measured)}


def _import_ms(*apps: str) -> float:
    """The milliseconds for all imports, as the sum of the times that `-X importtime` prints for each module."""
    installed = ["django.contrib.contenttypes", "django.contrib.auth", *apps]
    code = (
        "import django; from django.conf import settings;"
        f"settings.configure(INSTALLED_APPS={installed!r}); django.setup();"
        "import django.db.backends.postgresql.base, django.core.management"
    )
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
    lines = (line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if "|" in line)
    return sum(int(own) for own, _, _ in lines if own.strip().isdigit()) / 1000


def _cpu_seconds(supervisor: psutil.Process) -> float:
    """The processor time of the supervisor and its workers."""
    family = [supervisor, *supervisor.children()]
    return float(sum(sum(process.cpu_times()[:2]) for process in family))
