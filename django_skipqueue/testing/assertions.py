"""Assertions about the jobs that code under test has deferred."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from ..models import Job
from .databases import databases
from .descriptions import lines
from .matching import Expectation, expectation


@async_unsafe("assert_deferred() sends queries: in an async test, await aassert_deferred().")
def assert_deferred(
    task: Any,
    /,
    *args: Any,
    queue_name: str | None = None,
    run_after: datetime | timedelta | None = None,
    count: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    among: Iterable[Job] | None = None,
    database: str | None = None,
    **kwargs: Any,
) -> list[Job]:
    """Assert that a job of the task was deferred with these arguments. Returns the jobs that match.

    Only the arguments given here are compared, by position or name, as the task would receive them: with its defaults.

    task: a task of `@job`, one of Django's `@task`, or the name of one. Options of `.using()` are expected of the job:
    `assert_deferred(send_receipt.using(priority=5), payment_id=42)`.
    queue_name, run_after: expected as well. A timedelta counts from the time of the `.defer()`; times within a second
    are the same.
    count: exactly so many jobs match; default: one or more.
    arguments: further arguments by name, for parameters that are called like one of these options.
    among: look only at these jobs, such as those of `capture_deferred`; default: at all in the table, also at finished
    ones.
    database: the alias of the queue's database; default: `SKIPQUEUE["DATABASE"]`.

    Raises AssertionError with a list of what was deferred instead; `InvalidArguments` for arguments that the task does
    not have.
    """
    __tracebackhide__ = True
    options = {"queue_name": queue_name, "run_after": run_after, "count": count, "arguments": arguments}
    expected = expectation(task, args, kwargs, {**options, "among": among, "database": database})
    jobs = _jobs(among, database)
    found = [job for job in jobs if _is_expected(job, expected)]
    if (not found) if count is None else len(found) != count:
        raise AssertionError("\n".join([_failure(expected, len(found), count), *_instead(jobs, expected)]))
    return found


@async_unsafe("assert_not_deferred() sends queries: in an async test, await aassert_not_deferred().")
def assert_not_deferred(
    task: Any = None,
    /,
    *args: Any,
    queue_name: str | None = None,
    run_after: datetime | timedelta | None = None,
    arguments: Mapping[str, Any] | None = None,
    among: Iterable[Job] | None = None,
    database: str | None = None,
    **kwargs: Any,
) -> None:
    """Assert that no job of the task was deferred with these arguments; without a task: that no job was deferred.

    Arguments and options are those of `assert_deferred`. Raises AssertionError with the jobs that were deferred.
    """
    __tracebackhide__ = True
    jobs = _jobs(among, database)
    expected = None
    if task is not None:
        options = {"queue_name": queue_name, "run_after": run_after, "arguments": arguments}
        expected = expectation(task, args, kwargs, {**options, "among": among, "database": database})
        jobs = [job for job in jobs if _is_expected(job, expected)]
    if jobs:
        raise AssertionError("\n".join([f"{_counted(len(jobs), expected)} deferred:", *lines(jobs)]))


async def aassert_deferred(task: Any, /, *args: Any, **kwargs: Any) -> list[Job]:
    """`assert_deferred` for async tests."""
    return await sync_to_async(assert_deferred)(task, *args, **kwargs)


async def aassert_not_deferred(task: Any = None, /, *args: Any, **kwargs: Any) -> None:
    """`assert_not_deferred` for async tests."""
    await sync_to_async(assert_not_deferred)(task, *args, **kwargs)


def _jobs(among: Iterable[Job] | None, database: str | None) -> list[Job]:
    if among is not None:
        return list(among)
    return [job for alias in databases(database) for job in Job.objects.using(alias).order_by("pk")]


def _is_expected(job: Job, expected: Expectation) -> bool:
    return job.task == expected.name and not any(expected.differences(job))


def _counted(number: int, expected: Expectation | None) -> str:
    jobs = "1 job" if number == 1 else f"{number} jobs"
    return f"{jobs}{f' of {expected}' if expected else ''} {'was' if number == 1 else 'were'}"


def _failure(expected: Expectation, found: int, count: int | None) -> str:
    if count is None:
        return f"No job of {expected} was deferred."
    return f"{_counted(found, expected)} deferred, not {count}."


def _instead(jobs: list[Job], expected: Expectation) -> list[str]:
    """What was deferred; first the jobs of the expected task, with the names in which they differ."""
    if not jobs:
        return ["No job was deferred at all."]
    same = [job for job in jobs if job.task == expected.name]
    others = [job for job in jobs if job.task != expected.name]
    notes = {job.pk: ", ".join(expected.differences(job)) for job in same}
    return ["Deferred were:", *lines([*same, *others], notes)]
