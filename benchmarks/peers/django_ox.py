# /// script
# requires-python = ">=3.12"
# dependencies = ["django-ox==1.9.*", "django==6.1.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["django_ox"]
# backend = "django_ox.backend.OxBackend"
# ///
"""django-ox, a database backend for Django's task framework."""

import sys
from collections.abc import Sequence

from django.core.management import call_command
from django.tasks import task
from django_ox.bulk import enqueue_many as ox_enqueue_many
from django_ox.models import OxTask

from . import marks

TITLE = "django-ox"
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
    ox_enqueue_many(noop, [((number,), {}) for number in numbers])


def worker(*, best: bool) -> list[str]:
    # By default it runs one task at a time.
    return [sys.executable, "-m", "django", "ox_worker", *(("--processes", "2", "--concurrency", "4") if best else ())]


def unfinished() -> int:
    return int(OxTask.objects.filter(status__in=["READY", "RUNNING"]).count())
