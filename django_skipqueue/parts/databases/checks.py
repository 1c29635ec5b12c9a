"""The system checks of several databases."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from ...conf import load
from ...jobs.options import Options
from ...jobs.registry import registry
from .choose import import_placement
from .retirement import retirement
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
                message, hint = retirement(alias)
        except DatabaseError:
            continue  # Django itself reports that it cannot connect
        if message:
            found.append(Warning(message, hint=hint, id="skipqueue.W004"))
    return found
