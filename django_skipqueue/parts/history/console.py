"""The history, for operators: sections of the dashboard, pages of failures, and a line on the page of a job."""

from typing import Any

from ...console.parts import PartConsole, PartNotice, PartPage, PartSection
from ...models import Job

# A command does not need the admin.


def _failing(_: Any) -> Any:
    from .admin import top_causes

    return top_causes()


def _failures_like(job: Job) -> PartNotice | None:
    from .admin import failures_like

    return failures_like(job)


def _pages() -> tuple[PartPage, ...]:
    from .views import PAGES

    return PAGES


CONSOLE = PartConsole(
    about_job=_failures_like,
    pages=_pages,
    sections=(
        PartSection(
            name="failing",
            template="admin/django_skipqueue/history/failing.html",
            content=_failing,
            css="django_skipqueue/history/failures.css",
            after="charts",
        ),
    ),
)
