"""Tasks for the tests of `run_jobs`, some of which are difficult to run in the transaction of a `TestCase`."""

import logging
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from django_skipqueue import JobContext, job
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.backoff import constant

from ..app.models import Ledger

logger = logging.getLogger("shop")


@job(max_attempts=2, backoff=constant(0, jitter=0))
def break_the_transaction() -> None:
    """Fail with a statement that breaks the transaction of a `TestCase`. In a worker, it breaks only itself."""
    Ledger.objects.create(entry="before")
    if connection.in_atomic_block:
        transaction.on_commit(lambda: note.defer("by a hook"))
    User.objects.create(username="taken")
    User.objects.create(username="taken")


@job
def break_the_transaction_and_go_on() -> None:
    """Catch the error of a statement. In a worker this harms nothing."""
    try:
        User.objects.create(username="taken")
        User.objects.create(username="taken")
    except IntegrityError:
        return


@job
def warn(text: str, within: str = "") -> None:
    """Log, run another job, and log again."""
    logger.warning(text)
    if within:
        warn.defer(within)
        run_jobs(limit=5)
    logger.warning("%s is done", text)


@job
async def awarn(text: str) -> None:
    logger.warning(text)


@job
def write_on_commit(entry: str) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: note.defer(entry))


@job
async def awrite_on_commit(entry: str) -> None:
    await sync_to_async(write_on_commit.function)(entry)


@job(max_attempts=1)
def fail_on_commit() -> None:
    """Raise in a commit hook. In a worker this fails the attempt."""

    def fail() -> None:
        raise ValueError("in the hook")

    with transaction.atomic():
        transaction.on_commit(fail)


@job(atomic=True)
def write_atomically(entry: str) -> str:
    note.defer(entry)
    return entry


@job(takes_context=True)
def complete_within(context: JobContext, entry: str) -> str:
    """Complete the job in a transaction. An exception after the commit changes nothing."""
    with transaction.atomic():
        note.defer(entry)
        context.complete(entry)
    raise ValueError("too late")


@job
def note(entry: str) -> None:
    Ledger.objects.create(entry=entry)


@job
def note_again(entry: str, minutes: int) -> None:
    """Write an entry now, and another one by a job that is due some minutes later."""
    note(entry)
    note.using(run_after=timedelta(minutes=minutes)).defer(f"{minutes + 10} at last")


@job
async def anote(entry: str) -> None:
    await Ledger.objects.acreate(entry=entry)


@job
def report(count: int, *rest: Any, queue_name: str = "", copy: bool = False, **others: Any) -> None:
    """A task whose parameters have the names of options of `assert_deferred`."""


@job
def log_in(name: str, password: str = "") -> None:
    """A task with a secret."""


def entries() -> list[str]:
    return list(Ledger.objects.order_by("pk").values_list("entry", flat=True))
