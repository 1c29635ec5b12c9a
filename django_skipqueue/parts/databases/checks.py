"""The system checks for several databases, and a count of the unfinished jobs in a retiring database."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from ...conf import load
from ...jobs.options import Options
from ...jobs.registry import registry
from ...values.statuses import UNFINISHED_STATUSES
from .choose import import_placement
from .settings import ROUTER, SPREAD


def check_placement(**_: Any) -> list[CheckMessage]:
    """E009: the function of PLACEMENT cannot be imported. E010: the keys of a task belong to two databases."""
    try:
        placement = load().placement
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    if placement in (None, ROUTER):
        return []
    if placement == SPREAD:
        return [
            Error(
                f"The jobs of {task.name!r} have several keys, which could belong to different databases.",
                hint="Say which arguments choose the database: @job(shard_by=…). Each key counts within one database.",
                id="skipqueue.E010",
            )
            for task in registry
            if _needs_shard(task.options)
        ]
    try:
        import_placement(placement)
    except ImportError as error:
        hint = "SKIPQUEUE['PLACEMENT'] is 'spread', 'router', or a function that takes a CallToPlace, or its path."
        return [Error(f"SKIPQUEUE['PLACEMENT'] cannot be imported: {error}", hint=hint, id="skipqueue.E009")]
    return []


def _needs_shard(options: Options) -> bool:
    """Return whether a task's jobs have several keys, which count in one database, and no option chooses it."""
    is_placed = options.database is not None or any(part.has_shard for part in options.of_parts)
    return sum(part.has_key for part in options.of_parts) > 1 and not is_placed


MOST_UNFINISHED_COUNTED = 10_000
"""The check counts the jobs of each status up to this number, to be fast with millions of jobs."""


def count_unfinished(alias: str) -> int:
    """Count the unfinished jobs of this database. Raises `DatabaseError`."""
    from ...models import Job  # not at the top: Django registers checks while apps are loading

    jobs_by_status = (
        Job.objects.using(alias).filter(status=status) for status in UNFINISHED_STATUSES
    )  # each status has an index
    return sum(jobs.order_by()[:MOST_UNFINISHED_COUNTED].count() for jobs in jobs_by_status)


def capped_number(unfinished: int) -> str:
    return f"{unfinished:,}" if unfinished < MOST_UNFINISHED_COUNTED else f"{MOST_UNFINISHED_COUNTED:,}+"


def check_retiring(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """W004: report whether a retiring database still has unfinished jobs, in `check --database` and `migrate`."""
    try:
        aliases = [alias for alias in load().retiring if alias in (databases or ()) and alias in connections]
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    warnings: list[CheckMessage] = []
    for alias in aliases:
        try:
            with connections[alias].temporary_connection():
                unfinished = count_unfinished(alias)
        except DatabaseError:
            continue  # Django itself reports that it cannot connect; without tables the database has no jobs
        if unfinished:
            message = f"has unfinished jobs: {capped_number(unfinished)}."
            hint = (
                "Leave it there until workers have run them. Discard jobs that fail again and again, or that are "
                "scheduled years ahead."
            )
        else:
            message = "has no unfinished jobs."
            hint = "Remove it from SKIPQUEUE['RETIRING']. From then on, the history of its jobs is no longer shown."
        text = f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and {message}"
        warnings.append(Warning(text, hint=hint, id="skipqueue.W004"))
    return warnings
