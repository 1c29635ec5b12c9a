# /// script
# requires-python = ">=3.12"
# dependencies = ["dj-queue[postgres]==0.14.*", "django==6.1.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["dj_queue"]
# backend = "dj_queue.backend.DjQueueBackend"
# ///
"""dj_queue, a backend for Django's task framework that follows Solid Queue."""

import json
import sys
from collections.abc import Sequence

from dj_queue.api import concurrency
from dj_queue.backend import DjQueueBackend
from dj_queue.models import Job
from django.core.management import call_command
from django.tasks import task

from . import marks

TITLE = "dj_queue"
HISTORY = "row"

BEST = {"workers": [{"processes": 2, "threads": 10, "polling_interval": 0.01}]}
"""Larger numbers were not faster on two cores."""


@task
def noop(number: int) -> None:
    pass


@concurrency(key=str, limit=2)
@task
def limited(key: int) -> None:
    pass


@task
def mark(number: int) -> None:
    marks.leave(number)


def prepare() -> None:
    call_command("migrate", verbosity=0)


def enqueue(task: str, number: int) -> None:
    globals()[task].enqueue(number)


def enqueue_many(numbers: Sequence[int]) -> None:
    backend: DjQueueBackend = noop.get_backend()
    backend.enqueue_all([(noop, [number], {}) for number in numbers])


def enqueue_limited(keys: Sequence[int]) -> None:
    backend: DjQueueBackend = limited.get_backend()
    backend.enqueue_all([(limited, [key], {}) for key in keys])


def worker(*, best: bool) -> list[str]:
    options = json.dumps(BEST if best else {})
    return ["env", f"BENCHMARKS_OPTIONS={options}", sys.executable, "-m", "django", "dj_queue"]


def unfinished() -> int:
    return int(Job.objects.filter(finished_at__isnull=True).count())
