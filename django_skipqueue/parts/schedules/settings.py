"""Check the format of the setting `PERIODIC`. Pure: a system check checks the tasks and cron expressions later.

For example: `{"daily summary": {"task": "shop.jobs.summary", "cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin"}}`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SCHEDULE_KEYS = ("task", "cron", "every", "timezone", "args", "kwargs", "catch_up", "overlap", "jitter")


def problems(name: str, value: object) -> Iterator[str]:
    """Yield a sentence for each part that is not valid. `name`: the setting's name in the sentence."""
    if not isinstance(value, dict):
        yield f"{name} must be a dict of schedules by name, not {value!r}."
        return
    for schedule_name, options in value.items():
        place = f"{name}[{schedule_name!r}]"
        if not isinstance(schedule_name, str) or not schedule_name.strip():
            yield f"{name} has the key {schedule_name!r}; a key is the name of a schedule."
        elif not isinstance(options, dict):
            yield f"{place} must be a dict, not {options!r}."
        else:
            yield from _problems(place, options)


def _problems(place: str, options: dict[object, object]) -> Iterator[str]:
    for key in options:
        if key not in SCHEDULE_KEYS:
            yield f"{place} has no key {key!r}. It knows {', '.join(SCHEDULE_KEYS)}."
    if not isinstance(options.get("task"), str):
        yield f"{place}['task'] must be the name of a task, such as 'shop.jobs.daily_summary'."
    if ("cron" in options) == ("every" in options):
        yield f"{place} must have either 'cron', an expression such as '0 9 * * mon-fri', or 'every', a timedelta."


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    periodic: dict[str, dict[str, Any]] = field(default_factory=dict, metadata={"problems": problems})
    """Schedules by name."""
