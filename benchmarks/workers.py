"""Real `manage.py runworker` processes, started as an operator does, and drains by them."""

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
    """The command line."""
    return [sys.executable, "-m", "django", "runworker", *options]


@contextmanager
def running_worker(*options: str, settings: str = "benchmarks.settings") -> Iterator[psutil.Popen]:
    """A worker that is told to stop at the end of the block."""
    command = runworker("--verbosity", "0", "--settings", settings, *options)
    with psutil.Popen(command, stdin=subprocess.DEVNULL) as worker:
        try:
            yield worker
        finally:
            worker.terminate()


def fill(task: Any, count: int) -> int:
    """Defer `count` jobs with their numbers as the argument, and vacuum; the highest id from before."""
    last = Job.objects.order_by("-id").values_list("id", flat=True).first() or 0
    for start in range(0, count, 50_000):
        task.defer_many([(number,) for number in range(start, min(start + 50_000, count))])
    settle_down()
    return last


def settle_down() -> None:
    """Vacuum and write out what was put into the table, so that nobody does it during the measurement."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE skipqueue_job")
        cursor.execute("CHECKPOINT")


def drain(task: Any, count: int, *options: str) -> Figures:
    """Fill the queue and have a worker empty it.

    Timed by the database, from the first claim to the last settle: the start of the process is not in it. Counted by it
    as well: every transaction of supervisor and workers, those of their start and end among them.
    """
    last = fill(task, count)
    name = connection.settings_dict["NAME"]
    connection.close()
    wait_until_unused(name)
    before = transactions(name)
    subprocess.run(runworker("--drain", *options), check=True, stderr=subprocess.DEVNULL)
    wait_until_unused(name)
    used = transactions(name) - before
    seconds, settles = of_drain(last, count)
    return {
        "jobs/s": count / seconds,
        "transactions per 1,000 jobs": used / count * 1000,
        "jobs in a batch": count / settles,
    }


def of_drain(last: int, count: int) -> tuple[float, int]:
    """Of the jobs above id `last`, which must be `count` completed ones: their seconds, and the settles."""
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
    """Look twenty times a second, until the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("The worker did not do what was waited for.")
        time.sleep(0.05)


def is_empty() -> bool:
    """Whether every job is finished."""
    return not Job.objects.unfinished().exists()
