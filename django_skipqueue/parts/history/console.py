"""The history, for operators: metrics, a check of the doctor, and what the admin shows of it."""

from typing import TYPE_CHECKING, Any

from ...console.parts import PartCard, PartConsole, PartNotice, PartPage, PartSection
from ...models import Job
from .doctor import CHECK
from .metrics import SCRAPED, known_queues
from .rates import queue_rates

if TYPE_CHECKING:
    from ...console.admin.dashboard.cards import Card
    from ...console.admin.dashboard.situation import Situation

# A command does not need the admin.


def _pages() -> tuple[PartPage, ...]:
    from .views import PAGES

    return PAGES


def _failures_like(job: Job) -> PartNotice | None:
    from .admin import failures_like

    return failures_like(job)


def _rate(situation: "Situation") -> "Card":
    from .cards import rate

    return rate(situation)


def _recovered(situation: "Situation") -> "Card":
    from .cards import recovered

    return recovered(situation)


def _charts(situation: "Situation") -> Any:
    from .charts import charts

    return charts(situation)


def _failing(_: "Situation") -> Any:
    from .admin import top_causes

    return top_causes()


def _slowest(situation: "Situation") -> Any:
    from .slowest import slowest_tasks

    return slowest_tasks(situation)


CONSOLE = PartConsole(
    checks=(CHECK,),
    metrics=SCRAPED,
    known_queues=known_queues,
    queue_rates=queue_rates,
    pages=_pages,
    about_job=_failures_like,
    cards=(PartCard(make=_rate, after="running"), PartCard(make=_recovered, after="failed")),
    sections=(
        PartSection(name="charts", template="admin/django_skipqueue/history/charts.html", content=_charts),
        PartSection(
            name="failing",
            template="admin/django_skipqueue/history/failing.html",
            content=_failing,
            css="django_skipqueue/history/failures.css",
        ),
        PartSection(
            name="slowest_tasks",
            template="admin/django_skipqueue/history/slowest_tasks.html",
            content=_slowest,
            after="longest_jobs",
        ),
    ),
)
