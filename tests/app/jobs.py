"""The tasks that the tests run. Several tests use each of them; its name and arguments say what it does."""

import asyncio
import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from django_skipqueue import Discard, JobContext, Retry, Snooze, job
from django_skipqueue.values.backoff import constant

from .models import Ledger


class Transient(Exception):
    """An exception that `picky` wants retried."""


class Hopeless(Exception):
    """An exception that `picky` wants discarded."""


@job
def noop() -> None:
    """Do nothing."""


@job
async def anoop() -> None:
    """Do nothing, in the event loop."""


@job
def add(a: int, b: int = 0) -> int:
    return a + b


@job
async def aadd(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


@job
def echo(value: Any) -> Any:
    """Return the argument as it was read from the job's row."""
    return value


@job
def echo_length(text: str) -> int:
    return len(text)


@job
def gather(first: Any, *rest: Any, flag: bool = False, **others: Any) -> list[Any]:
    """Return the arguments. The signature has every kind of parameter."""
    return [first, rest, flag, others]


@job(name="mail.send", queue_name="mail", priority=7, max_attempts=3)
def send_mail(payment_id: int) -> None:
    """A task with a name and options in its decorator."""


@job(max_attempts=3, backoff=constant(0, jitter=0))
def fail(message: str = "as asked") -> None:
    """Fail in every attempt. The three attempts follow each other without a pause."""
    raise ValueError(message)


@job(max_attempts=3, backoff=constant(0, jitter=0))
async def afail(message: str = "as asked") -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


@job(takes_context=True, backoff=constant(0, jitter=0))
def fail_times(context: JobContext, times: int) -> int:
    """Fail the first `times` attempts; then return the number of the attempt."""
    if context.attempt <= times:
        raise ValueError(f"attempt {context.attempt} of {times} that fail")
    return context.attempt


@job(max_attempts=3, retry_on=(Transient,), discard_on=(Hopeless,), backoff=constant(0, jitter=0))
def picky(exception: str) -> None:
    """Raise Transient (retried), Hopeless (discarded) or, for any other name, ValueError (fails at once)."""
    raise {"Transient": Transient, "Hopeless": Hopeless}.get(exception, ValueError)(exception)


@job(max_attempts=3)
def ask_for_retry(after: float | None = None) -> None:
    raise Retry("not yet", after=after)


@job(max_attempts=3)
def snooze(after: float = 60) -> None:
    raise Snooze("come back", after=after)


@job
def discard(reason: str = "no longer wanted") -> None:
    raise Discard(reason)


@job
def slow(seconds: float) -> float:
    """Occupy a thread."""
    time.sleep(seconds)
    return seconds


@job
async def aslow(seconds: float) -> float:
    """Run as a coroutine for some seconds, without a thread."""
    await asyncio.sleep(seconds)
    return seconds


@job(takes_context=True)
def see_context(context: JobContext, note: str = "") -> dict[str, Any]:
    """Return the values of the context."""
    return _context_values(context, context.job.task, note)


@job(takes_context=True)
async def asee_context(context: JobContext, note: str = "") -> dict[str, Any]:
    return _context_values(context, (await context.aget_job()).task, note)


def _context_values(context: JobContext, task: str, note: str) -> dict[str, Any]:
    return {
        "job_id": context.job_id,
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "queue_name": context.queue_name,
        "worker": context.worker,
        "is_last_attempt": context.is_last_attempt,
        "task": task,
        "note": note,
    }


@job(takes_context=True)
def record(context: JobContext, entry: str) -> None:
    """Write a row into the ledger."""
    _write(context, entry)


@job(takes_context=True)
async def arecord(context: JobContext, entry: str) -> None:
    await sync_to_async(_write)(context, entry)


@job(takes_context=True, max_attempts=3, backoff=constant(0, jitter=0))
def record_and_fail(context: JobContext, entry: str) -> None:
    """Write a row into the ledger, then fail."""
    _write(context, entry)
    raise ValueError(entry)


@job(takes_context=True)
def record_and_hold(context: JobContext, entry: str, until: str = "go", patience: float = 30) -> None:
    """Write `entry`, then wait until the test has written `until`: the test decides how long the task runs."""
    _write(context, entry)
    deadline = time.monotonic() + patience
    while not Ledger.objects.filter(entry=until).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {until!r}")
        time.sleep(0.01)


@job(takes_context=True)
async def arecord_and_hold(context: JobContext, entry: str, until: str = "go", patience: float = 30) -> None:
    await sync_to_async(_write)(context, entry)
    deadline = time.monotonic() + patience
    while not await Ledger.objects.filter(entry=until).aexists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {until!r}")
        await asyncio.sleep(0.01)


@job(takes_context=True)
def record_and_die(context: JobContext, entry: str, on_attempt: int = 1) -> None:
    """Write `entry`. In the attempt `on_attempt`, kill the worker process as the out-of-memory killer would."""
    _write(context, entry)
    if context.attempt == on_attempt:
        os.kill(os.getpid(), signal.SIGKILL)


UNSTORABLE: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "nul": "a\0b",
    "surrogate": "\ud800",
    "set": {1, 2},
    "object": object(),
}


@job(max_attempts=1)
def return_unstorable(kind: str) -> Any:
    """Return a value that cannot be stored in a jsonb column."""
    return UNSTORABLE[kind]


@job(max_attempts=1)
def raise_unstorable() -> None:
    """Raise an error whose message cannot be stored in a text column."""
    raise ValueError("before\0after \ud800 and more")


def _write(context: JobContext, entry: str) -> None:
    Ledger.objects.create(entry=entry, job_id=context.job_id, attempt=context.attempt, worker=context.worker)


from . import worker_jobs  # noqa: E402, F401 (its tasks register themselves)

for path in sorted(Path(__file__).parent.glob("*/**/jobs.py")):  # registers the tasks of parts as well
    import_module(".".join([__package__, *path.relative_to(Path(__file__).parent).with_suffix("").parts]))
