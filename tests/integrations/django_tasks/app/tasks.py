"""Django tasks of a project. Most of them use no option of this package."""

import asyncio
import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import sync_to_async

from django_skipqueue import Batch, JobContext, limit, unique_by, with_options
from tests.app.models import Ledger

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task

HAS_OPTIONS = django.VERSION[:2] != (6, 0)
"""Whether Django's `@task` takes options of a backend: only Django 6.0 refuses them."""


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def aadd(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


@task
def echo(value: Any) -> Any:
    """Return the argument as it came out of the row."""
    return value


RETURN_VALUES: dict[str, Any] = {
    "none": None,
    "tuple": (1, ("a", b"b")),
    "nested": {"a": [1, {"b": None}], "c": 1.5, "d": True},
    "number keys": {1: "one"},
    "function": lambda: None,
    "not utf-8": b"\xff",
    "nan": float("nan"),
    "nul": "a\0b",
    "endless": [],
}
RETURN_VALUES["endless"].append(RETURN_VALUES["endless"])  # a list that contains itself


@task
def give(kind: str) -> Any:
    """Return a value that is not allowed as an argument."""
    return RETURN_VALUES[kind]


@task
def approve(number: int) -> Any:
    """Run as steps, so that each attempt continues where the last one has stopped."""
    context = JobContext.current()
    assert context is not None
    first = context.step("first", lambda: number + 1)
    return [first, context.wait("approved")]


@task
def fail(message: str = "as asked") -> None:
    raise ValueError(message)


@task
async def afail(message: str = "as asked") -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


@task(takes_context=True)
def fail_times(context: "TaskContext[Any, Any]", times: int) -> int:
    """Fail in the first `times` attempts. Then return the number of the attempt."""
    if context.attempt <= times:
        raise ValueError(f"attempt {context.attempt} of {times} that fail")
    return context.attempt


@task(takes_context=True)
def see_context(context: "TaskContext[Any, Any]", note: str = "") -> dict[str, Any]:
    return _context_values(context, note)


def _context_values(context: "TaskContext[Any, Any]", note: str) -> dict[str, Any]:
    """Return the values of the context."""
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "errors": len(result.errors),
        "path": result.task.module_path,
        "note": note,
    }


@task(takes_context=True)
async def asee_context(context: "TaskContext[Any, Any]", note: str = "") -> dict[str, Any]:
    await asyncio.sleep(0)
    return _context_values(context, note)


@task(takes_context=True)
def batch_name(context: "TaskContext[Any, Any]") -> str | None:
    """Return the name of the batch that the job belongs to."""
    batch = Batch.of(context.task_result)
    return batch.row.name if batch else None


@task
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task
def record(entry: str) -> str:
    """Write a row into the ledger."""
    Ledger.objects.create(entry=entry)
    return entry


@task
async def arecord(entry: str) -> str:
    await sync_to_async(Ledger.objects.create)(entry=entry)
    return entry


@task
def record_and_hold(entry: str, until: str = "go") -> str:
    """Write `entry`, then wait until the test has written `until`."""
    Ledger.objects.create(entry=entry)
    deadline = time.monotonic() + 30
    while not Ledger.objects.filter(entry=until).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {until!r}")
        time.sleep(0.01)
    return entry


@task(takes_context=True)
def die_once(context: "TaskContext[Any, Any]") -> int:
    """Kill the worker process in the first attempt, as the kernel's out-of-memory killer would."""
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return context.attempt


@task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if HAS_OPTIONS:

    @task(max_attempts=2, backoff="tests.integrations.django_tasks.app.backoffs.at_once", timeout=30.0)  # type: ignore[call-overload, untyped-decorator]  # Django's own
    def picky() -> None:
        """A task with options of this package."""
        raise ValueError("never")


@task(backend="elsewhere")
def visit(entry: str) -> str:
    """A task for another backend; `.using()` may select the backend of this package."""
    return entry


@task
def log_in(user: str, password: str) -> None:
    """Raise an error that contains the secret argument."""
    raise ValueError(f"{user} has no password {password}")


def every_minute(attempt: int) -> float:
    return 60.0


@task(priority=3)
@with_options(
    unique_key=lambda iban, times=1: f"keyed-{iban}",
    max_attempts=4,
    timeout=20,
    backoff=every_minute,
    retry_on=(OSError, ArithmeticError),
    discard_on=ZeroDivisionError,
    redact="iban",
)
def keyed(iban: str, times: int = 1) -> int:
    """A task with the options of `@job`. It raises an error that is retried (1), discarded (2) or neither (3)."""
    raise {1: OSError, 2: ZeroDivisionError, 3: KeyError}[times](iban)


@task(takes_context=True)
@with_options(unique_key=lambda value: f"context-{value}")
def keyed_with_context(context: "TaskContext[Any, Any]", value: int) -> int:
    return value


@task(backend="elsewhere")
@with_options(unique_key="visit once")
def visit_once(entry: str) -> str:
    """A task with options for a backend that does not read them."""
    return entry


@task
@with_options(unique=unique_by("value"))
def unique_call(value: Any, note: str = "") -> Any:
    return value


@task
@with_options(unique=unique_by("number"), until="started", on_conflict="replace")
def debounced(number: int, note: str) -> str:
    return note


@task
@with_options(unique=unique_by(), on_conflict="raise", until=timedelta(hours=1))
def lone() -> None: ...


def unplaced(value: int) -> int:
    return value


def unplaced_with_context(context: "TaskContext[Any, Any]", value: int) -> int:
    return value


@task()
@with_options(concurrency=limit(1, by="account"))
def limited(account: str, cents: int = 0) -> None:
    """A task that runs at most one job at a time for each account."""


@task
@with_options(fair_by="tenant")
def fair(tenant: str) -> None:
    """A task whose tenants share the workers fairly."""
