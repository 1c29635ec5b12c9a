"""The sections below the cards. A further one is a function of a `Situation`, a template, and a line in `SECTIONS`."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...operators.schedule_states import schedule_states
from ..failures.failures_page import top_causes
from ..queues.columns import COLUMNS
from ..schedules.columns import ON_DASHBOARD
from .charts import charts
from .longest_jobs import longest_jobs
from .situation import Situation
from .slowest_tasks import slowest_tasks

MOST_QUEUES = 10
MOST_SCHEDULES = 5

TROUBLE = ("error", "late")
"""The states of schedules that come first."""

NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    """Of its template, `admin/django_skipqueue/dashboard/NAME.html`."""
    content: Callable[[Situation], Any]

    @property
    def template(self) -> str:
        """The path of its template."""
        return f"admin/django_skipqueue/dashboard/{self.name}.html"


def _queues(situation: Situation) -> dict[str, Any]:
    shown = situation.queues[:MOST_QUEUES]
    return {
        "columns": COLUMNS,
        "rows": [[(column, column.cell(queue)) for column in COLUMNS] for queue in shown],
        "hidden": len(situation.queues) - len(shown),
    }


def _schedules(_: Situation) -> dict[str, Any]:
    """Those that need attention, then those that fire next."""
    found = sorted(schedule_states(), key=lambda each: (each.state not in TROUBLE, each.next_run or NEVER))
    return {
        "columns": ON_DASHBOARD,
        "rows": [[(column, column.cell(each)) for column in ON_DASHBOARD] for each in found[:MOST_SCHEDULES]],
        "hidden": max(0, len(found) - MOST_SCHEDULES),
    }


SECTIONS = (
    Section("charts", charts),
    Section("failing", lambda _: top_causes()),
    Section("queues", _queues),
    Section("schedules", _schedules),
    Section("longest_jobs", longest_jobs),
    Section("slowest_tasks", slowest_tasks),
)
"""In the order of the page."""
