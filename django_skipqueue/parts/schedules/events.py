"""The events of schedules, and their log lines.

A log line has the format of `events.logs`: the event first, then `key=value`.
"""

import logging
from dataclasses import dataclass

from ...events.events import Event
from ...events.log_format import in_words
from ...events.log_sink import Lines
from ...events.logs import write


@dataclass(frozen=True)
class ScheduleFired(Event):
    """A schedule has enqueued its jobs: one, or several for times that were missed."""

    database: str
    name: str
    task: str
    job_ids: list[int]
    late: float
    """Seconds between the last planned time and the enqueue."""


@dataclass(frozen=True)
class ScheduleSkipped(Event):
    """A schedule was due, and has enqueued no job, or fewer than there were times."""

    database: str
    name: str
    reason: str
    """`job`: another job is unfinished. `late`: the times were missed, and are not caught up with."""
    last_job_id: int | None


@dataclass(frozen=True)
class SchedulePaused(Event):
    database: str
    name: str
    by: str


@dataclass(frozen=True)
class ScheduleResumed(Event):
    database: str
    name: str
    by: str


@dataclass(frozen=True)
class ScheduleFailed(Event):
    """A schedule is due, and cannot fire. Sent once for each new error."""

    database: str
    name: str
    error: str


def schedule_fired(event: ScheduleFired) -> None:
    shown = {"name": event.name, "task": event.task, "job": event.job_ids[-1]}
    if len(event.job_ids) > 1:
        shown["jobs"] = len(event.job_ids)
    write(logging.INFO, "schedule_fired", {**shown, "late": in_words(max(event.late, 0.0))})


def schedule_skipped(event: ScheduleSkipped) -> None:
    job = {"last_job": event.last_job_id} if event.reason == "job" and event.last_job_id is not None else {}
    reason = {"job": "another job is unfinished", "late": "missed"}[event.reason]
    write(logging.INFO, "schedule_skipped", {"name": event.name, "reason": reason, **job})


def schedule_failed(event: ScheduleFailed) -> None:
    """A schedule is due, and cannot fire. It is tried again every minute."""
    write(logging.ERROR, "schedule_failed", {"name": event.name, "error": event.error})


def schedule_paused(event: SchedulePaused) -> None:
    write(logging.WARNING, "schedule_paused", {"name": event.name, **({"by": event.by} if event.by else {})})


def schedule_resumed(event: ScheduleResumed) -> None:
    write(logging.INFO, "schedule_resumed", {"name": event.name, **({"by": event.by} if event.by else {})})


def schedule_unusable(name: str, problem: str) -> None:
    """An entry of code or settings cannot be used. It has no row, or an older one."""
    write(logging.ERROR, "schedule_unusable", {"name": name, "error": problem})


def schedule_brought_back(name: str) -> None:
    """The next time of a schedule was too far in the future: the database's clock was ahead when it was written."""
    write(logging.WARNING, "schedule_brought_back", {"name": name, "reason": "the database's clock was ahead"})


LINES: Lines = {
    ScheduleFired: (logging.INFO, schedule_fired),
    ScheduleSkipped: (logging.INFO, schedule_skipped),
    ScheduleFailed: (logging.ERROR, schedule_failed),
    SchedulePaused: (logging.WARNING, schedule_paused),
    ScheduleResumed: (logging.INFO, schedule_resumed),
}
