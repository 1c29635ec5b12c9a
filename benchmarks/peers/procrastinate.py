# /// script
# dependencies = ["procrastinate[django]==3.10.*", "django==5.2.*", "psycopg[binary]==3.*"]
# [tool.peer]
# apps = ["procrastinate.contrib.django"]
# ///
"""procrastinate in Django: with its Django connector, its management command and a `def` task."""

import sys
from collections.abc import Sequence

from django.core.management import call_command
from procrastinate.contrib.django import app
from procrastinate.contrib.django.models import ProcrastinateJob

from . import marks

TITLE = "procrastinate (Django)"
HISTORY = "row and events"


@app.task(name="noop")
def noop(number: int) -> None:
    pass


@app.task(name="mark")
def mark(number: int) -> None:
    marks.leave(number)


def prepare() -> None:
    call_command("migrate", verbosity=0)


def enqueue(task: str, number: int) -> None:
    app.tasks[task].defer(number=number)


def enqueue_many(numbers: Sequence[int]) -> None:
    noop.batch_defer(*({"number": number} for number in numbers))


def worker(*, best: bool) -> list[str]:
    return [sys.executable, "-m", "django", "procrastinate", "worker", *(("--concurrency", "20") if best else ())]


def unfinished() -> int:
    return int(ProcrastinateJob.objects.filter(status__in=["todo", "doing"]).count())
