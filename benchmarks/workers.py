"""Start real `manage.py runworker` processes, and time how fast they drain a queue."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from django.db import connection

from django_skipqueue.models import Job

from .databases import transactions, wait_until_unused
from .figures import Figures


def runworker(*options: str) -> list[str]:
    """The command `manage.py runworker` with these options."""
    return [sys.executable, "-m", "django", "runworker", *options]


@contextmanager
def running_worker(*options: str, settings: str = "benchmarks.settings") -> Iterator[psutil.Popen]:
    """Run a worker, and stop it at the end of the block."""
    command = runworker("--verbosity", "0", "--settings", settings, *options)
    with psutil.Popen(command, stdin=subprocess.DEVNULL) as worker:
        try:
            yield worker
        finally:
            worker.terminate()


def fill(task: Any, count: int) -> int:
    """Defer `count` jobs with their numbers as argument, and vacuum. Returns the highest id before these jobs."""
    last = Job.objects.order_by("-id").values_list("id", flat=True).first() or 0
    for start in range(0, count, 50_000):
        task.defer_many([(number,) for number in range(start, min(start + 50_000, count))])
    settle_down()
    return last


def settle_down() -> None:
    """Vacuum the table and make a checkpoint, so that PostgreSQL does neither during the measurement."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE skipqueue_job")
        cursor.execute("CHECKPOINT")


def drain(task: Any, count: int, *options: str) -> Figures:
    """Fill the queue and have a worker empty it.

    The clock of the database times it from the first claim to the last settlement, without the start of the process.
    All transactions of supervisor and workers are counted, including those of their start and end.
    """
    last = fill(task, count)
    name = connection.settings_dict["NAME"]
    connection.close()
    wait_until_unused(name)
    before = transactions(name)
    subprocess.run(runworker("--drain", *options), check=True, stderr=subprocess.DEVNULL)
    wait_until_unused(name)
    used = transactions(name) - before
    seconds, settles = measure_drain_in_database(last, count)
    return {
        "jobs/s": count / seconds,
        "transactions per 1,000 jobs": used / count * 1000,
        "jobs in a batch": count / settles,
    }


def measure_drain_in_database(last: int, count: int) -> tuple[float, int]:
    """Returns the seconds from the first claim to the last settlement, and how many transactions settled jobs.

    The jobs are those above the id `last`. There must be `count` of them, all completed.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE status = 'completed'),"
            " extract(epoch FROM max(finished_at) - min(started_at))::float8, count(DISTINCT xmin::text)"
            " FROM skipqueue_job WHERE id > %s AND queue_name = 'default'",
            [last],
        )
        completed, seconds, settles = cursor.fetchone()
    if completed != count:
        raise RuntimeError(f"{count - completed} of {count} jobs were not completed.")
    return seconds, settles


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition is true. It is checked twenty times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("The worker did not reach the expected state in time.")
        time.sleep(0.05)


def is_empty() -> bool:
    """Whether every job is finished."""
    return not Job.objects.unfinished().exists()
