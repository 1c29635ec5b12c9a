"""The tasks that run while faults happen. Each writes rows with its lease into the ledger, the table `chaos_ledger`.

Invariant: the result or the error of a task contains the lease under which it ran, so that the checks find an outcome
that was written under another lease.
"""

import asyncio
import re
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.backends.signals import connection_created

from django_skipqueue import Discard, JobContext, Retry, Snooze, by, job, limit, rate
from django_skipqueue.values.backoff import constant

from .models import Row
from .promises import promise_all
from .step_invariants import ITEMS
from .witness import Ledger

ledger = Ledger()
short_backoff = constant(0.3)

Result = dict[str, Any]


def enter_tenant(connection: Any, **_: Any) -> None:
    """Set up a new connection by two statements, as projects with a schema for each tenant do."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('chaos.tenant', 'tenant', false)")
        cursor.execute("SET search_path TO chaos_tenant, public")


connection_created.connect(enter_tenant)


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def quick(context: JobContext) -> Result:
    """Write only that it ends; most jobs of the load have this task."""
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def blink(context: JobContext) -> Result:
    """Do nothing, as fast as the queue can."""
    return {"lease": context.lease}


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def work(context: JobContext, seconds: float) -> Result:
    """Write when it begins and when it ends."""
    _write(context, "begin")
    _pause(seconds)
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
async def work_async(context: JobContext, seconds: float) -> Result:
    """Write when it begins and when it ends, as a coroutine."""
    await sync_to_async(_write)(context, "begin")
    await asyncio.sleep(seconds)
    return await sync_to_async(_write)(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff, atomic=True, timeout=10)
def work_atomic(context: JobContext, seconds: float) -> Result:
    """Write one effect in the transaction that completes the job. The timeout is for a connection that hangs."""
    return _write_effect(context, seconds)


@job(takes_context=True, max_attempts=50, backoff=short_backoff, timeout=10)
def work_completing(context: JobContext, seconds: float) -> None:
    """Write one effect, and complete the job by hand in the same transaction."""
    _write(context, "begin")
    with transaction.atomic():
        context.complete(_write_effect(context, seconds))


@job(takes_context=True, max_attempts=50, backoff=short_backoff, timeout=10)
def write_row(context: JobContext) -> Result:
    """Write a row through Django on the connection of the thread. The timeout is for a connection that hangs."""
    Row.objects.create(job_id=context.job_id)
    return {"lease": context.lease}


@job(takes_context=True, max_attempts=100, backoff=short_backoff, timeout=0.4)
def write_row_again(context: JobContext) -> Result:
    """Write a row on a new connection. If connecting is slow, the timeout interrupts the attempt.

    Only the first attempts open a new connection: on a busy computer all of them might be interrupted.
    """
    if context.attempt <= 3:
        connection.close()
    return write_row(context)


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def return_argument(context: JobContext, text: str) -> Result:
    """Return the argument, even if it is large."""
    return {**_write(context, "end"), "load": text}


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def return_large_text(context: JobContext, size: int) -> Result:
    """Return a text of this many characters."""
    return {**_write(context, "end"), "load": "x" * size}


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def discard_large_argument(context: JobContext, text: str) -> None:
    """Discard its own job, so that the large row is pruned."""
    _write(context, "begin")
    raise Discard(_lease_text(context))


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def freeze(context: JobContext) -> Result:
    """In the first attempt, match a regular expression that never ends and lets no other thread run."""
    _write(context, "begin")
    if context.attempt == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def stumble(context: JobContext, times: int) -> Result:
    """Ask for a retry this number of times, and then complete."""
    _write(context, "begin")
    if context.attempt <= times:
        raise Retry(_lease_text(context))
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def doze(context: JobContext, times: int) -> Result:
    """Snooze this number of times, and then complete."""
    _write(context, "begin")
    if ledger.count(context.job_id, "begin") <= times:
        raise Snooze(after=0.2)
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff, concurrency=limit(2, by="key"))
def limited(context: JobContext, key: int, seconds: float) -> Result:
    """Write when it begins and when it ends. At most two jobs of a key run at once."""
    _write(context, "begin")
    _pause(seconds)
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff, sequence=by("key", on_failure="continue"))
def in_order(context: JobContext, key: int, times: int) -> Result:
    """Ask for a retry this number of times, and then complete; the jobs of a key run one after the other."""
    _write(context, "begin")
    if context.attempt <= times:
        raise Retry(_lease_text(context))
    return _write(context, "end")


@job(takes_context=True, max_attempts=1, sequence=by("key"))
def in_strict_order(context: JobContext, key: int, times: int) -> Result:
    """Fail for good this number of times, so that its sequence halts until an operator retries or discards the job."""
    _write(context, "begin")
    if ledger.count(context.job_id, "begin") <= times:
        raise ValueError(_lease_text(context))
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff, rate=rate("5/s", by="key", burst=2))
def rated(context: JobContext, key: int, times: int) -> Result:
    """Ask for a retry this number of times, and then complete; each attempt takes a token of the rate."""
    _write(context, "begin")
    if context.attempt <= times:
        raise Retry(_lease_text(context))
    return _write(context, "end")


@job(
    takes_context=True,
    max_attempts=50,
    backoff=short_backoff,
    rate=rate("8/s", by="key", burst=3),
    concurrency=limit(2, by="key"),
)
def rated_and_limited(context: JobContext, key: int, seconds: float) -> Result:
    """Write when it begins and when it ends, within a limit and a rate."""
    _write(context, "begin")
    _pause(seconds)
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff, fair_by="tenant")
def fair(context: JobContext, tenant: int, seconds: float) -> Result:
    """Write when it begins and when it ends. Only a few jobs of a tenant are queued at once."""
    _write(context, "begin")
    _pause(seconds)
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def grow(context: JobContext, count: int) -> Result:
    """Add jobs to the batch of the running job."""
    _write(context, "begin")
    with transaction.atomic():
        assert context.batch is not None
        promise_all(context.batch.add(*[work.s(0.0) for _ in range(count)]))
    return _write(context, "end")


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def called_back(context: JobContext, name: str) -> Result:
    """A callback of a batch. The witness reads the name of the callback from the argument."""
    _write(context, "begin")
    return _write(context, "end")


CALLBACKS: dict[str, Any] = {
    name: called_back.using(priority=10).s(name) for name in ("on_success", "on_failure", "on_finish")
}


@job(takes_context=True, max_attempts=50, backoff=short_backoff, timeout=1)
def overrun(context: JobContext, times: int) -> Result:
    """Exceed the timeout this number of times, and then complete."""
    _write(context, "begin")
    while context.attempt <= times:
        _pause(0.02)
    return _write(context, "end")


@job(takes_context=True, max_attempts=20, backoff=short_backoff, timeout=20)
def go_on(context: JobContext) -> Result:
    """Go through steps of all kinds. `step_invariants` says which, and what each writes."""

    def note(what: str) -> str:
        return _note(context, f"step {what}")

    account = context.step("account", note, "account", atomic=True)
    context.sleep("nap", 0.2)
    context.run_all("children", [work.s(0.0), work.s(0.02)])
    signal = context.wait("go")
    context.each("items", range(ITEMS), lambda number: note(f"item {number}"), atomic=True)
    for _ in context.each("rest", range(ITEMS)):
        _pause(0.02)
    context.step("last", note, "last", atomic=True)
    return {"lease": context.lease, "account": account, "signal": signal}


@job(takes_context=True, max_attempts=3, backoff=short_backoff)
def fail(context: JobContext) -> None:
    """Fail each time."""
    _write(context, "begin")
    raise ValueError(_lease_text(context))


@job(takes_context=True, max_attempts=50, backoff=short_backoff)
def give_up(context: JobContext) -> None:
    """Discard its own job."""
    _write(context, "begin")
    raise Discard(_lease_text(context))


def _pause(seconds: float) -> None:
    """Wait this number of seconds, without `time.sleep`, which raises OSError under libfaketime."""
    threading.Event().wait(seconds)


def _write(context: JobContext, what: str) -> Result:
    ledger.write(context.job_id, context.lease, what)
    return {"lease": context.lease}


def _write_effect(context: JobContext, seconds: float) -> Result:
    with connection.cursor() as cursor:
        values = [context.job_id, context.lease]
        cursor.execute("INSERT INTO chaos_ledger (job_id, lease, what) VALUES (%s, %s, 'effect')", values)
    _pause(seconds)
    return {"lease": context.lease}


def _note(context: JobContext, what: str) -> str:
    """Write what a step does, in the transaction that records the step."""
    with connection.cursor() as cursor:
        values: tuple[int, int, str] = (context.job_id, context.lease, what)
        cursor.execute("INSERT INTO chaos_ledger (job_id, lease, what) VALUES (%s, %s, %s)", values)
    return what


def _lease_text(context: JobContext) -> str:
    return f"ran under lease {context.lease}"
