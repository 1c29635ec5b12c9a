"""Tells the causes of failed attempts for which the task is not to blame: dead workers, and faults of the database."""

from collections import Counter
from collections.abc import Sequence

from django.utils.translation import gettext

from ...events.log_format import printable
from ...queue.store import Store
from ...values.records import Cause
from .causes import FailureCounts, Standing
from .rollups import WORKER_DIED
from .rules import death_toll, jobs_that_kill

DATABASE_FAULTS = tuple(
    f"{module}.{name}"
    for module in ("django.db.utils", "psycopg", "psycopg.errors")
    for name in ("OperationalError", "InterfaceError", "AdminShutdown", "QueryCanceled", "LockNotAvailable")
)
"""The exceptions that a task does not raise by its own fault, if other tasks raise them as well."""

MOST_SUSPECTS = 4
"""The tasks of which the jobs that kill are looked for, at most."""


def bystanders(store: Store, causes: Sequence[FailureCounts]) -> dict[Cause, str]:
    """Return the causes among these that fail now because of something else, each with a sentence that says of what."""
    failing = [each for each in causes if each.standing == Standing.FAILING]
    with_fault = Counter(each.cause.exception for each in failing if each.cause.exception in DATABASE_FAULTS)
    found = {
        each.cause: gettext("A bystander: %(number)s tasks fail with this error of the database now.")
        % {"number": with_fault[each.cause.exception]}
        for each in failing
        if with_fault[each.cause.exception] > 1
    }
    died = [each.cause for each in failing if each.cause.exception == WORKER_DIED]
    if toll := death_toll(store) if died else None:
        suspects = toll.suspects[:MOST_SUSPECTS]
        killing = [name for name in suspects if jobs_that_kill(store, name, toll)] or suspects
        text = gettext("A bystander: in all these deaths of workers %(task)s was running as well.")
        for cause in died:
            if cause.task not in killing:
                found[cause] = text % {"task": printable(", ".join(killing))}
    return found
