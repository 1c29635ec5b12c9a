"""The sections below the cards. A further one is a function of a `Situation`, a template, and a line in `SECTIONS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...operators.batch_states import batches_with_failures, running_batches
from ...operators.limit_states import first_states
from ...operators.schedule_states import first_schedules
from ..batches.columns import ON_DASHBOARD as BATCH_COLUMNS
from ..failures.failures_page import top_causes
from ..limits.columns import COLUMNS as OF_LIMITS
from ..limits.columns import rows as rows_of_limits
from ..queues.columns import columns_for
from ..schedules.columns import ON_DASHBOARD
from .charts import charts
from .longest_jobs import longest_jobs
from .situation import Situation
from .slowest_tasks import slowest_tasks

MOST_QUEUES = 10
MOST_SCHEDULES = 5
MOST_BATCHES = 5
MOST_KEYS = 10


@dataclass(frozen=True)
class Section:
    name: str
    """Of its template, `admin/django_skipqueue/dashboard/NAME.html`."""
    content: Callable[[Situation], Any]

    @property
    def template(self) -> str:
        return f"admin/django_skipqueue/dashboard/{self.name}.html"


def _queues(situation: Situation) -> dict[str, Any]:
    shown = situation.queues[:MOST_QUEUES]
    columns = columns_for(shown)
    return {
        "columns": columns,
        "rows": [[(column, column.cell(queue)) for column in columns] for queue in shown],
        "hidden": len(situation.queues) - len(shown),
    }


def _schedules(_: Situation) -> dict[str, Any]:
    """The schedules that need attention, then the schedules that fire next."""
    found = first_schedules(MOST_SCHEDULES)
    return {
        "columns": ON_DASHBOARD,
        "rows": [[(column, column.cell(each)) for column in ON_DASHBOARD] for each in found.states],
        "hidden": found.others,
    }


def _limits(situation: Situation) -> dict[str, Any]:
    """The halted sequences, then the keys whose jobs have waited for the longest."""
    return {"columns": OF_LIMITS, "rows": rows_of_limits(first_states(situation.store, most=MOST_KEYS))}


def _batches(_: Situation) -> dict[str, Any]:
    """The batches that run, then the batches that ended with failures; of each the newest."""
    found = [*running_batches(MOST_BATCHES), *batches_with_failures(MOST_BATCHES)]
    return {
        "columns": BATCH_COLUMNS,
        "rows": [[(column, column.cell(each)) for column in BATCH_COLUMNS] for each in found],
    }


SECTIONS = (
    Section("charts", charts),
    Section("failing", lambda _: top_causes()),
    Section("queues", _queues),
    Section("limits", _limits),
    Section("schedules", _schedules),
    Section("batches", _batches),
    Section("longest_jobs", longest_jobs),
    Section("slowest_tasks", slowest_tasks),
)
"""In the order of the page."""
