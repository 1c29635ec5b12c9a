# /// script
# dependencies = ["django==5.2.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["django_skipqueue", "benchmarks.peers"]
# ///
"""Our queue, with which the others are compared."""

import sys
from collections.abc import Sequence

from django.core.management import call_command

from django_skipqueue.models import Job

from . import jobs

TITLE = "django_skipqueue"
HISTORY = "row"


def prepare() -> None:
    call_command("migrate", verbosity=0)


def enqueue(task: str, number: int) -> None:
    getattr(jobs, task).defer(number)


def enqueue_many(numbers: Sequence[int]) -> None:
    jobs.noop.defer_many([(number,) for number in numbers])


def enqueue_limited(keys: Sequence[int]) -> None:
    jobs.limited.defer_many([(key,) for key in keys])


def enqueue_workflows(numbers: Sequence[int], steps: int) -> None:
    jobs.workflow.defer_many([(number, steps) for number in numbers])


def worker(*, best: bool) -> list[str]:
    return [sys.executable, "-m", "django", "runworker", *(("--processes", "2") if best else ())]


def worker_of_four() -> list[str]:
    return worker(best=False)


def unfinished() -> int:
    return Job.objects.unfinished().count()
