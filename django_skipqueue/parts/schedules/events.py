"""The events about schedules, and their log lines."""

import logging
from dataclasses import dataclass

from ...events.events import Event
from ...events.log_format import in_words
from ...events.logs import write


@dataclass(frozen=True)
class ScheduleFired(Event):
    """A schedule has enqueued a job, or several jobs for missed times."""

    level = logging.INFO

    database: str
    name: str
    task: str
    job_ids: list[int]
    late: float
    """Seconds from the last planned time to the enqueue."""

    def write_lines(self) -> None:
        jobs = {"jobs": len(self.job_ids)} if len(self.job_ids) > 1 else {}
        shown = {"name": self.name, "task": self.task, "job": self.job_ids[-1], **jobs}
        write(logging.INFO, "schedule_fired", {**shown, "late": in_words(max(self.late, 0.0))})


@dataclass(frozen=True)
class ScheduleSkipped(Event):
    """A schedule was due, but enqueued no job, or fewer jobs than it has missed times."""

    level = logging.INFO

    database: str
    name: str
    reason: str
    """`job`: the last job is unfinished. `late`: times were missed, and the schedule skips missed times."""
    last_job_id: int | None

    def write_lines(self) -> None:
        job = {"last_job": self.last_job_id} if self.reason == "job" and self.last_job_id is not None else {}
        reason = {"job": "another job is unfinished", "late": "missed"}[self.reason]
        write(logging.INFO, "schedule_skipped", {"name": self.name, "reason": reason, **job})


@dataclass(frozen=True)
class SchedulePaused(Event):
    level = logging.WARNING

    database: str
    name: str
    by: str

    def write_lines(self) -> None:
        write(logging.WARNING, "schedule_paused", {"name": self.name, **({"by": self.by} if self.by else {})})


@dataclass(frozen=True)
class ScheduleResumed(Event):
    level = logging.INFO

    database: str
    name: str
    by: str

    def write_lines(self) -> None:
        write(logging.INFO, "schedule_resumed", {"name": self.name, **({"by": self.by} if self.by else {})})


@dataclass(frozen=True)
class ScheduleFailed(Event):
    """A schedule is due but cannot fire. A supervisor tries every minute, and sends this once for each new error."""

    level = logging.ERROR

    database: str
    name: str
    error: str

    def write_lines(self) -> None:
        write(logging.ERROR, "schedule_failed", {"name": self.name, "error": self.error})


def schedule_unusable(name: str, problem: str) -> None:
    """Log that an entry of code or settings is not valid. It has no row, or a row with an older definition."""
    write(logging.ERROR, "schedule_unusable", {"name": name, "error": problem})


def schedule_brought_back(name: str) -> None:
    """Log that a schedule's next time was too far in the future, because the database's clock was ahead for a while."""
    write(logging.WARNING, "schedule_brought_back", {"name": name, "reason": "the database's clock was ahead"})
