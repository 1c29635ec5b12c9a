"""Find failures for which the failing task is not to blame: another task kills workers, or the database fails."""

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
"""If several tasks fail with the same one of these exceptions, the database is to blame."""

MOST_SUSPECTS = 4
"""The maximum number of tasks in which to search for jobs that kill workers."""


def bystanders(store: Store, causes: Sequence[FailureCounts]) -> dict[Cause, str]:
    """Return the current causes for which the failing task is not to blame, each with a sentence that says why."""
    failing = [counts for counts in causes if counts.standing == Standing.FAILING]
    database_faults = Counter(counts.cause.exception for counts in failing if counts.cause.exception in DATABASE_FAULTS)
    sentences = {
        counts.cause: gettext("A bystander: %(number)s tasks have failed with this error of the database.")
        % {"number": database_faults[counts.cause.exception]}
        for counts in failing
        if database_faults[counts.cause.exception] > 1
    }
    worker_deaths = [counts.cause for counts in failing if counts.cause.exception == WORKER_DIED]
    if toll := death_toll(store) if worker_deaths else None:
        suspects = toll.suspects[:MOST_SUSPECTS]
        killers = [name for name in suspects if jobs_that_kill(store, name, toll)] or suspects
        text = gettext("A bystander: in all these deaths of workers %(task)s was running as well.")
        for cause in worker_deaths:
            if cause.task not in killers:
                sentences[cause] = text % {"task": printable(", ".join(killers))}
    return sentences
