# /// script
# requires-python = ">=3.12"
# dependencies = ["steady-queue==0.3.*", "django==6.0.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["steady_queue"]
# backend = "steady_queue.backend.SteadyQueueBackend"
# ///
"""Steady Queue, a port of Solid Queue to Django's task framework."""

import sys
from collections.abc import Sequence

from django.core.management import call_command
from django.db import transaction
from django.tasks import task
from steady_queue.concurrency import limits_concurrency
from steady_queue.models import Job

from . import marks

TITLE = "Steady Queue"
HISTORY = "row"

BEST = """
import datetime, django
django.setup()
from django.conf import settings
from django.core.management import call_command
from steady_queue.configuration import Configuration
interval = datetime.timedelta(seconds=0.01)
settings.STEADY_QUEUE = Configuration.Options(
    dispatchers=[Configuration.Dispatcher()],
    workers=[Configuration.Worker(processes=2, threads=10, polling_interval=interval)],
)
call_command("steady_queue")
"""
"""A program that makes the best settings, which are objects of the package, and runs the worker."""


@task
def noop(number: int) -> None:
    pass


@limits_concurrency(key=str, to=2)
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
    with transaction.atomic():
        for number in numbers:
            noop.enqueue(number)


def enqueue_limited(keys: Sequence[int]) -> None:
    with transaction.atomic():
        for key in keys:
            limited.enqueue(key)


def worker(*, best: bool) -> list[str]:
    return [sys.executable, *(("-c", BEST) if best else ("-m", "django", "steady_queue"))]


def unfinished() -> int:
    return int(Job.objects.filter(finished_at__isnull=True).count())
