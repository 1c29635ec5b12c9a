"""Hints in error messages: our names for options and methods of other queues, and why a database cannot be used.

A call that succeeds runs only `check_names`, which is fast, because it only compares names.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections

from ..exceptions import QueueUnavailable
from ..values.bounds import did_you_mean

FOREIGN_METHODS = {
    "delay": ".defer(…)",
    "delay_on_commit": ".defer(…), which is part of the transaction",
    "apply_async": ".defer(…), with options .using(…).defer(…)",
    "defer_async": ".adefer(…)",
    "configure": ".using(…)",
    "enqueue": ".defer(…)",
    "aenqueue": ".adefer(…)",
    "send": ".defer(…)",
    "send_with_options": ".using(…).defer(…)",
    "schedule": ".using(run_after=…).defer(…)",
    "si": ".s(…): no call takes the result of another one",
}
"""Methods of tasks in other queue packages, each with our method to use instead."""

RUN_AFTER_ADVICE = "run_after=timedelta(seconds=…)"
MAX_ATTEMPTS_ADVICE = "max_attempts, which counts the first attempt as well: three retries are max_attempts=4"

FOREIGN_OPTIONS = {
    "queue": "queue_name",
    "queues": "queue_name",
    "delay": RUN_AFTER_ADVICE,
    "countdown": RUN_AFTER_ADVICE,
    "schedule_in": RUN_AFTER_ADVICE,
    "eta": "run_after",
    "schedule_at": "run_after",
    "scheduled_at": "run_after",
    "retries": MAX_ATTEMPTS_ADVICE,
    "max_retries": MAX_ATTEMPTS_ADVICE,
    "retry": MAX_ATTEMPTS_ADVICE,
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "autoretry_for": "retry_on",
    "default_retry_delay": "backoff",
    "retry_backoff": "backoff",
    "bind": "takes_context",
    "queueing_lock": "unique_key",
    "using": "database",
    "unique_by": 'unique=unique_by("…")',
    "debounce": 'unique=unique_by("…"), on_conflict="replace" and .using(run_after=…)',
    "limit": 'concurrency=limit(…, by="…")',
    "concurrency_limit": 'concurrency=limit(…, by="…")',
    "max_concurrency": 'concurrency=limit(…, by="…")',
    "limit_by": 'concurrency=limit(…, by="…")',
    "rate_limit": 'rate=rate("100/m", by="…")',
    "throttle": 'rate=rate("100/m", by="…")',
    "lock": 'sequence=by("…")',
    "order_by": 'sequence=by("…")',
    "ordering_key": 'sequence=by("…")',
}
"""Options of other queue packages, each with our option to use instead."""


SCHEDULES = ("cron", "crontab", "every", "interval", "periodic", "schedule")
"""Options by which other queue packages enqueue a task at intervals."""


def instead_of_method(name: str) -> str:
    """The end of an error message about a missing attribute of a task: our method to use instead."""
    return f" Use {FOREIGN_METHODS[name]}." if name in FOREIGN_METHODS else ""


def check_names(
    function: str, options: Mapping[str, Any], known: Collection[str], *, elsewhere: Collection[str] = ()
) -> None:
    """Raise `TypeError` for an option that the function does not have, and suggest a similar option.

    known: the options that the function has. elsewhere: the options that only `@job` has.
    """
    for name in options:
        if name not in known:
            if name in SCHEDULES:
                hint = " A schedule has a decorator of its own, above @job: @periodic('0 9 * * mon-fri')."
            else:
                hint = f" Give {name} to @job." if name in elsewhere else _suggestion(name, list(known), elsewhere)
            raise TypeError(f"{function}() has no option {name!r}.{hint}")


def wrong_keyword(keywords: Sequence[str], signature: inspect.Signature) -> str:
    """An error message about the first keyword argument that the task does not take; empty if it takes them all."""
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return ""
    for name in keywords:
        if name not in parameters:
            hint = did_you_mean(name, list(parameters)) if parameters else ""
            if name in FOREIGN_OPTIONS or name in FOREIGN_OPTIONS.values():
                hint = f" Options of a job are given before: .using({FOREIGN_OPTIONS.get(name, name)}).defer(…)."
            return f"got an unexpected keyword argument {name!r}.{hint}"
    return ""


def _suggestion(name: str, known: list[str], elsewhere: Collection[str]) -> str:
    option = FOREIGN_OPTIONS.get(name, "")
    own_name = option.split("=")[0].split(",")[0]
    if own_name in known:
        return f" Did you mean {option}?"
    return f" Give {option} to @job." if own_name in elsewhere else did_you_mean(name, known)


FROM_ASYNC_CODE = "In async code, use `await task.adefer(…)`, or `await task.adefer_many(…)` for many jobs."


def postgresql_hint(alias: str) -> str:
    """A hint which settings put the queue into a PostgreSQL database."""
    return (
        f"Set DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql', "
        "or SKIPQUEUE['DATABASE'] to the alias of a PostgreSQL database."
    )


@contextmanager
def explained(alias: str) -> Iterator[None]:
    """If this block raises a database error, explain its likely cause. `alias`: the database that the block uses.

    If the database is not PostgreSQL, raises `QueueUnavailable` instead. Django's error for async code suggests a
    thread; it is replaced by an error that suggests `.adefer()`.
    """
    try:
        yield
    except (DatabaseError, SynchronousOnlyOperation) as error:
        explain(error, alias)
        raise


def explain(error: DatabaseError | SynchronousOnlyOperation, alias: str) -> None:
    """Add a hint to a database error, or raise another error instead, as `explained` does."""
    if isinstance(error, SynchronousOnlyOperation):
        raise SynchronousOnlyOperation(FROM_ASYNC_CODE) from error
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise QueueUnavailable(f"{not_postgresql_message(alias)} {postgresql_hint(alias)}") from error
    if isinstance(error.__cause__, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        error.add_note(f"Is the queue's table up to date? Run: {migrate_command(alias)}")


def not_postgresql_message(alias: str) -> str:
    """An error message that this database is not PostgreSQL."""
    return f"The queue needs PostgreSQL, but the database {alias!r} is {connections[alias].display_name}."


def migrate_command(alias: str) -> str:
    """The `manage.py` command that creates the queue's tables in this database."""
    return f"manage.py migrate django_skipqueue{'' if alias == 'default' else f' --database={alias}'}"
