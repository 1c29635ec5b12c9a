"""The history, for operators: a section of the dashboard."""

from typing import Any

from ...console.parts import PartConsole, PartSection


def _failing(_: Any) -> Any:
    from .admin import top_causes  # a command does not need the admin

    return top_causes()


CONSOLE = PartConsole(
    sections=(
        PartSection(
            name="failing", template="admin/django_skipqueue/history/failing.html", content=_failing, after="charts"
        ),
    )
)
