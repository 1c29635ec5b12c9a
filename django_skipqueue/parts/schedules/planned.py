"""The schedules for `run_jobs(schedules=…)`, which passes the time: no row of a schedule is read or written."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...queue.enqueue import new_job
from ...queue.store import Store
from .decorator import name_of
from .entry import Entry, all_entries, prepared
from .fire import is_unfinished, spec_at


@dataclass(eq=False)
class PlannedSchedule:
    """See `testing.run.Planned`."""

    entry: Entry
    last_job_id: int | None = None

    @property
    def database(self) -> str:
        return self.entry.database

    def first(self, now: datetime) -> datetime | None:
        return self.entry.timetable.first(now)

    def fire(self, store: Store, due: datetime) -> datetime | None:
        """Enqueue a job, unless the last one is unfinished and the schedule skips such times."""
        job_id = self.last_job_id
        if job_id is None or self.entry.overlap == "allow" or not is_unfinished(store, job_id):
            spec, call = prepared(self.entry.task, *self.entry.call)
            inserted = new_job(store, store.enqueue, spec_at(spec, self.entry, due, jitter=0.0), call)
            self.last_job_id = inserted.id if inserted else job_id
        return self.entry.timetable.after(due, planned=due)


def planned(schedules: bool | Sequence[Any]) -> list[PlannedSchedule]:
    """The schedules of the project; those of these tasks, if it is a list. Raises ValueError for a task without one."""
    entries, _ = all_entries()
    if schedules is not True:
        names = {name_of(task) for task in schedules or ()}
        if without := names - {entry.task for entry in entries}:
            raise ValueError(f"{min(without)} has no schedule: @periodic goes above @job or @task.")
        entries = [entry for entry in entries if entry.task in names]
    return [PlannedSchedule(entry) for entry in entries]
