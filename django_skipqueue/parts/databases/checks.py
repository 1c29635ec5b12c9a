"""The system checks of several databases, and what is left in a database that is to go."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from ...conf import load
from ...jobs.options import Options
from ...jobs.registry import registry
from .choose import import_placement
from .settings import ROUTER, SPREAD


def check_placement(**_: Any) -> list[CheckMessage]:
    """E009: a function in PLACEMENT that cannot be imported. E010: a task whose keys belong to two databases."""
    try:
        placement = load().placement
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    if placement in (None, ROUTER):
        return []
    if placement == SPREAD:
        return [
            Error(
                f"The jobs of {task.name!r} have several keys, which would belong to different databases.",
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
    """Whether jobs have several keys that hold within one database, and no option says which database that is."""
    is_placed = options.database is not None or any(part.has_shard for part in options.of_parts)
    return sum(part.has_key for part in options.of_parts) > 1 and not is_placed


MOST_COUNTED = 10_000
"""Jobs of a status that are counted at most: the check has to be quick beside millions."""


def unfinished(alias: str) -> int:
    """The number of jobs of this database that are to be run still. Raises `DatabaseError`."""
    from ...models import Job  # not before it is needed: checks are registered while apps are loading

    jobs = Job.objects.using(alias)
    each_has_an_index = (jobs.queued(), jobs.scheduled(), jobs.blocked(), jobs.running())
    return sum(some.order_by()[:MOST_COUNTED].count() for some in each_has_an_index)


def in_figures(left: int) -> str:
    """The number as text: above a limit it was not counted."""
    return f"{left:,}" if left < MOST_COUNTED else f"{MOST_COUNTED:,}+"


def check_retiring(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """W004: a database that is to go, and what is left in it. Runs with `check --database` and `migrate`, like E003."""
    try:
        aliases = [alias for alias in load().retiring if alias in (databases or ()) and alias in connections]
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    found: list[CheckMessage] = []
    for alias in aliases:
        try:
            with connections[alias].temporary_connection():
                left = unfinished(alias)
        except DatabaseError:
            continue  # Django itself reports that it cannot connect; without tables there is nothing in it
        if left:
            message = f"has unfinished jobs: {in_figures(left)}."
            hint = (
                "Leave it there until workers have run them. Discard those that fail again and again, or that are "
                "years ahead."
            )
        else:
            message = "none of its jobs is unfinished."
            hint = (
                "Take it out of SKIPQUEUE['RETIRING']. The history of its jobs is shown only as long as it is listed."
            )
        text = f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and {message}"
        found.append(Warning(text, hint=hint, id="skipqueue.W004"))
    return found
