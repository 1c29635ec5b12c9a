# /// script
# dependencies = ["django-tasks-db[compat]==0.13.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["django_tasks", "django_tasks_db"]
# backend = "django_tasks_db.DatabaseBackend"
# ///
"""django-tasks-db, the database backend for Django's task framework (on Django 5.2, with the package django-tasks)."""

import sys
from collections.abc import Sequence

from django.core.management import call_command
from django.db import transaction
from django_tasks import task
from django_tasks_db.models import DBTaskResult

from . import marks

TITLE = "django-tasks-db"
HISTORY = "row"


@task
def noop(number: int) -> None:
    pass


@task
def mark(number: int) -> None:
    marks.leave(number)


def prepare() -> None:
    call_command("migrate", verbosity=0)


def enqueue(task: str, number: int) -> None:
    globals()[task].enqueue(number)


def enqueue_many(numbers: Sequence[int]) -> None:
    with transaction.atomic():  # it has no function that enqueues many jobs
        for number in numbers:
            noop.enqueue(number)


def worker(*, best: bool) -> list[str]:
    # By default it waits for a second between two polls, and some time at its start.
    return [sys.executable, "-m", "django", "db_worker", *(("--interval", "0", "--no-startup-delay") if best else ())]


def unfinished() -> int:
    return int(DBTaskResult.objects.filter(status__in=["READY", "RUNNING"]).count())
