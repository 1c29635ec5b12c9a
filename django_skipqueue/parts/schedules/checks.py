"""The system check of the schedules."""

from typing import Any

from django.core.checks import CheckMessage, Error

from .entry import all_entries


def check_periodic(**_: Any) -> list[CheckMessage]:
    """E008: a schedule that cannot fire: an unknown task, wrong arguments, a cron expression or time zone."""
    return [
        Error(
            f"The schedule {name!r} cannot fire: {problem}",
            hint="The how-to “Run jobs periodically” (docs/how-to/periodic.md) has examples.",
            id="skipqueue.E008",
        )
        for name, problem in all_entries()[1]
    ]
