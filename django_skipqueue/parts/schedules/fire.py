"""Fire the schedules that are due: insert a schedule's jobs and store its next time, in one transaction.

A job is enqueued exactly once for each time of a schedule, with any number of supervisors, even if one dies: the
supervisor that inserts the job has locked the schedule's row, and commits the next time together with the job. No code
of the project runs here. An error of one schedule is stored in its row, and does not stop other schedules.
"""

import random
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, Error, transaction

from ...conf import settings
from ...exceptions import SkipQueueError, UnknownTask
from ...jobs.registry import registry
from ...queue.enqueue import new_job
from ...queue.fragments import joined
from ...queue.parameters import is_refused
from ...queue.store import Store
from ...values.codec import decode, encode, shorten
from ...values.records import JobSpec
from ...values.redaction import redact
from ...worker.loop import Periodic
from . import events as schedule_logs
from .decorator import name_of
from .entry import Problem, ScheduleEntry, all_entries, bring_back, prepared_job, synchronise
from .events import ScheduleFailed, ScheduleFired, ScheduleSkipped
from .timetable import Timetable, instant, timetable

MOST_CAUGHT_UP = 100
"""The maximum number of jobs that `catch_up="all"` enqueues at once. Older times are skipped."""

MISSED_SECONDS = 60.0
"""After this many seconds a time counts as missed, and `catch_up="skip"` skips it."""

ERROR_RETRY_SECONDS = 60.0
"""If a schedule could not fire, a supervisor tries again after this many seconds."""

KEY_LOCK_TIMEOUT = "1s"
"""How long the INSERT of a job may wait for another transaction that holds its unique key."""

LOCK_NOT_AVAILABLE = "55P03"
"""The SQLSTATE of a lock timeout."""

SCHEDULE_METADATA_KEY = "schedule"
"""The key in a job's metadata that stores the name of its schedule, the planned time, and the schedule's rule."""


@dataclass(frozen=True)
class DueSchedule:
    """A row of `DUE_SCHEDULE`, in the order of its columns."""

    id: int
    name: str
    task: str
    args: str
    kwargs: str
    cron: str
    interval: float | None
    timezone: str
    catch_up: str
    overlap: str
    jitter: float
    planned_at: float | None
    last_job_id: int | None
    error: str
    now: float

    @property
    def timetable(self) -> Timetable:
        """The timetable of the row. Raises `InvalidOption` if the row's times are not valid."""
        interval = None if self.interval is None else timedelta(seconds=self.interval)
        return timetable(cron=self.cron, interval=interval, zone=self.timezone)

    @property
    def planned(self) -> datetime:
        return instant(self.now if self.planned_at is None else self.planned_at)

    @property
    def late(self) -> float:
        """Seconds since the planned time."""
        return (instant(self.now) - self.planned).total_seconds()


class Skip(SkipQueueError):
    """This supervisor does not know the schedule's task, and leaves the schedule to other supervisors."""

    def __init__(self, schedule_id: int) -> None:
        super().__init__()
        self.schedule_id = schedule_id


# Sent by fire. Returns the schedule that is due first, and the time; no row if no schedule is due, or if other
# supervisors are firing all due schedules. The row stays locked until the transaction has inserted the job and stored
# the next time. If a schedule comes from code, only supervisors with the same definition fire it. Times are seconds
# since the epoch. Index: skipqueue_schedule_fire.
DUE_SCHEDULE = """
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE
    fire_at <= statement_timestamp()
    AND paused_at IS NULL
    AND (digest = ANY (%(digests)s::text[]) OR source = 'admin')
    AND id <> ALL (%(skipped)s::bigint[])
ORDER BY fire_at, id
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED
"""


def fire(store: Store, *, digests: Collection[str], skipped: Collection[int]) -> bool:
    """Fire the schedule that is due first. Return whether there was one.

    Raises `Skip` if this process does not know the schedule's task, as long as the schedule is not late.
    """
    with transaction.atomic(using=store.alias):
        rows = store.rows(DUE_SCHEDULE, {"digests": list(digests), "skipped": list(skipped)})
        events = [event for row in rows for event in _fire_schedule(store, DueSchedule(*row))]
    for event in events:
        store.send(event)
    return bool(rows)


# Sent by next_due. Returns the seconds until the next schedule is due, negative if one is due now; no row if there is
# no schedule. Index: skipqueue_schedule_fire.
NEXT_FIRE = """
SELECT extract(epoch FROM fire_at - statement_timestamp())::float8
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND fire_at IS NOT NULL
    AND (digest = ANY (%(digests)s::text[]) OR source = 'admin')
    AND id <> ALL (%(skipped)s::bigint[])
ORDER BY fire_at, id
LIMIT 1
"""


def next_due(store: Store, *, digests: Collection[str], skipped: Collection[int]) -> float | None:
    """Return the seconds until the next schedule is due, negative if one is due now; `None` if there is no schedule."""
    rows = store.rows(NEXT_FIRE, {"digests": list(digests), "skipped": list(skipped)})
    return float(rows[0][0]) if rows else None


ScheduleEvent = ScheduleFired | ScheduleSkipped | ScheduleFailed


# Sent by fire, which has locked the row. Stores why the schedule could not fire, and when a supervisor tries again.
# Index: the primary key.
NOTE_ERROR = """
UPDATE skipqueue_schedule
SET error = %(error)s, fire_at = statement_timestamp() + make_interval(secs => %(delay)s)
WHERE id = %(id)s
"""


def _fire_schedule(store: Store, schedule: DueSchedule) -> list[ScheduleEvent]:
    try:
        with transaction.atomic(using=store.alias):
            return _enqueue(store, schedule)
    except UnknownTask as error:
        if schedule.late < MISSED_SECONDS:
            raise Skip(schedule.id) from None
        problem: Exception = error
    except Error as error:
        row_is_refused = isinstance(error, DatabaseError) and is_refused(error)
        key_is_locked = getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE
        if not (row_is_refused or key_is_locked):
            raise
        problem = error
    except Exception as error:  # any error is possible, because somebody may have edited the row by hand
        problem = error
    text = error_text(schedule, problem)
    store.execute(NOTE_ERROR, {"id": schedule.id, "error": text, "delay": ERROR_RETRY_SECONDS})
    return [] if text == schedule.error else [ScheduleFailed(store.alias, schedule.name, text)]


def error_text(schedule: DueSchedule, problem: Exception) -> str:
    """Return the error's message in one line, with secrets of the schedule's arguments masked."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    try:
        args, kwargs = decode(schedule.args), decode(schedule.kwargs)
    except (ValueError, RecursionError):
        return shorten(text)
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        return shorten(text)
    try:
        arguments = registry.get(schedule.task).redacted(args, kwargs)
    except UnknownTask:
        arguments = redact(args, kwargs, also=settings.redact)
    return shorten(arguments.text(text))


# Sent by fire, which has locked the row. Limits how long an INSERT may wait for another transaction that holds its
# unique key.
LIMIT_KEY_LOCK = "SELECT set_config('lock_timeout', %(timeout)s, true)"

# The time at which the first of the jobs that have failed in a row was enqueued. Reads the schedule's last five jobs,
# before the row forgets the oldest of them. NULL if one of these jobs has succeeded. If the row already has an earlier
# time, this time stays. Index: the primary key of jobs.
FAILING_SINCE_RUN = """(
        SELECT
            CASE
                WHEN count(*) FILTER (WHERE job.status IN ('completed', 'discarded')) > 0 THEN NULL
                ELSE COALESCE(
                    failing_since,
                    min(job.enqueued_at) FILTER (WHERE job.last_error > '')
                )
            END
        FROM skipqueue_job AS job
        WHERE job.id = ANY (last_job_id || earlier_job_ids)
    )"""

# Sent by fire, which has locked the row. Writes the next time, and the ids of the enqueued jobs: the newest as
# `last_job_id`, and the four before it as `earlier_job_ids`. Index: the primary key.
FIRED = joined(
    """
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8),
    last_run_at = CASE WHEN cardinality(%(job_ids)s::bigint[]) = 0 THEN last_run_at ELSE statement_timestamp() END,
    last_job_id = COALESCE((%(job_ids)s::bigint[])[1], last_job_id),
    earlier_job_ids = CASE
        WHEN cardinality(%(job_ids)s::bigint[]) = 0 THEN earlier_job_ids
        ELSE (array_remove(%(job_ids)s::bigint[] || last_job_id || earlier_job_ids, NULL))[2:5]
    END,
    failing_since = {failing_since},
    skipped_at = CASE WHEN %(is_skipped)s THEN statement_timestamp() ELSE skipped_at END,
    error = ''
WHERE id = %(id)s
""",
    failing_since=FAILING_SINCE_RUN,
)


def _enqueue(store: Store, schedule: DueSchedule) -> list[ScheduleEvent]:
    table, now = schedule.timetable, instant(schedule.now)
    times = _due_times(schedule, table, now)
    due = times[-MOST_CAUGHT_UP:]
    spec, call = prepared_job(schedule.task, decode(schedule.args), decode(schedule.kwargs))
    store.rows(LIMIT_KEY_LOCK, {"timeout": KEY_LOCK_TIMEOUT})
    ids: list[int] = []
    for planned in due:
        last_job_id = ids[-1] if ids else schedule.last_job_id
        if schedule.overlap == "skip" and last_job_id is not None and is_unfinished(store, last_job_id):
            break
        spec_for_time = spec_at(spec, schedule, planned, jitter=schedule.jitter)
        inserted = new_job(store, store.enqueue_untraced, spec_for_time, call)
        if inserted is not None:  # `None`: another job holds the unique key
            ids.append(inserted.id)
    next_time = table.after(now, planned=schedule.planned)
    events = list(_events(store, schedule, due, ids))
    if len(times) > len(due):  # more than `MOST_CAUGHT_UP` times have passed
        events.append(ScheduleSkipped(store.alias, schedule.name, "late", ids[-1] if ids else schedule.last_job_id))
    store.execute(
        FIRED,
        {
            "id": schedule.id,
            "next": next_time and next_time.timestamp(),
            "job_ids": ids[::-1],  # the newest first
            "is_skipped": any(isinstance(event, ScheduleSkipped) for event in events),
        },
    )
    return events


def _events(store: Store, schedule: DueSchedule, due: list[datetime], ids: list[int]) -> Iterator[ScheduleEvent]:
    if ids:
        newest_with_job = due[len(ids) - 1]
        late = schedule.now - newest_with_job.timestamp()
        yield ScheduleFired(store.alias, schedule.name, schedule.task, ids, late)
    if len(ids) < max(len(due), 1):  # not every time has a job, or all times are too late for one
        yield ScheduleSkipped(store.alias, schedule.name, "job" if due else "late", schedule.last_job_id)


def _due_times(schedule: DueSchedule, table: Timetable, now: datetime) -> list[datetime]:
    """Return the times for which to enqueue a job, at most `MOST_CAUGHT_UP` and one more."""
    limit = MOST_CAUGHT_UP + 1 if schedule.catch_up == "all" else 1
    # If somebody has edited the row by hand, the planned time may not belong to the timetable. Enqueue a job for it
    # anyway.
    due = table.newest(now, planned=schedule.planned, limit=limit) or [schedule.planned]
    if schedule.catch_up == "skip":
        return [time for time in due if (now - time).total_seconds() < MISSED_SECONDS]
    return due


def spec_at(spec: JobSpec, schedule: DueSchedule | ScheduleEntry, planned: datetime, *, jitter: float) -> JobSpec:
    """Return the spec of the job for this time. The job is delayed by a random time of at most `jitter` seconds."""
    origin = {"name": schedule.name, "planned_at": planned.isoformat(), **schedule.timetable.rule}
    spec = spec._replace(metadata=encode("metadata", decode(spec.metadata) | {SCHEDULE_METADATA_KEY: origin}))
    if not jitter:
        return spec
    return spec._replace(run_after=timedelta(seconds=random.uniform(0, jitter)))  # noqa: S311 (spreads load)


# Sent by fire, run_now. Returns whether the last job of a schedule is unfinished. This must be a separate statement
# after the statement that locks the row: if a single statement waited for the lock, it would read an older snapshot.
# Index: the primary key of jobs.
IS_UNFINISHED = """
SELECT EXISTS (SELECT FROM skipqueue_job WHERE id = %(id)s AND finished_at IS NULL)
"""


def is_unfinished(store: Store, job_id: int) -> bool:
    """Return whether this job is unfinished; False if it was pruned."""
    ((unfinished,),) = store.rows(IS_UNFINISHED, {"id": job_id})
    return bool(unfinished)


ENTRY_CONFIRM_SECONDS = 30.0
"""Seconds between two confirmations of the entries."""

LONGEST_SCHEDULE_WAIT = 2.0
"""The longest time between two checks for due schedules, because somebody may add, change or resume a schedule."""

LOCKED_SCHEDULE_WAIT = 0.5
"""Seconds until the next check if a schedule is due but another transaction has locked it."""

SKIP_SECONDS = 15.0
"""If a supervisor does not know a schedule's task, it ignores the schedule for this many seconds."""

NAME_IS_TAKEN = "a schedule of the admin has this name"

MOST_FIRED_AT_ONCE = 20
"""The maximum number of schedules that one run fires."""


class FireSchedules(Periodic):
    name = "schedules"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.confirm_at = 0.0
        self._has_started = False
        self._entries: list[ScheduleEntry] | None = None
        self._problems: list[Problem] = []
        self.digests: list[str] = []
        self._skipped: dict[int, float] = {}  # the monotonic time until which each schedule is skipped, by id

    def run(self, now: float) -> None:
        if now >= self.confirm_at:
            self._confirm()
        for _ in range(MOST_FIRED_AT_ONCE):
            if not self._fire():
                break
        else:
            self.run_again_in(0.0)
            return
        due_in = next_due(self._store, digests=self.digests, skipped=self._skipped)
        if due_in is None:
            wait = LONGEST_SCHEDULE_WAIT
        elif due_in <= 0.0:  # another transaction has locked this schedule, otherwise it would have been fired
            wait = LOCKED_SCHEDULE_WAIT
        else:
            wait = min(due_in, LONGEST_SCHEDULE_WAIT)
        self.run_again_in(wait)

    def _confirm(self) -> None:
        if self._entries is None:
            # Read only once, because a dataclass among the arguments may run code of the project.
            entries, self._problems = all_entries()
            self._entries = [entry for entry in entries if entry.database == self._store.alias]
        taken_names = synchronise(self._store, self._entries, has_started=self._has_started)
        if not self._has_started:
            for name, problem in [*self._problems, *((name, NAME_IS_TAKEN) for name in taken_names)]:
                schedule_logs.schedule_unusable(name, problem)
        for name in bring_back(self._store):
            schedule_logs.schedule_brought_back(name)
        self.digests = [entry.digest for entry in self._entries]
        self._has_started = True
        self.confirm_at = time.monotonic() + ENTRY_CONFIRM_SECONDS

    def _fire(self) -> bool:
        """Fire a schedule. Return whether more schedules may be due."""
        now = time.monotonic()
        self._skipped = {id: until for id, until in self._skipped.items() if until > now}
        try:
            return fire(self._store, digests=self.digests, skipped=self._skipped)
        except Skip as skip:
            self._skipped[skip.schedule_id] = now + SKIP_SECONDS
            return True


@dataclass(eq=False)
class PlannedSchedule:
    """A schedule that a test fires: see `testing.run.Planned`."""

    entry: ScheduleEntry
    last_job_id: int | None = None

    @property
    def database(self) -> str:
        return self.entry.database

    def first(self, now: datetime) -> datetime | None:
        return self.entry.timetable.first(now)

    def fire(self, store: Store, due: datetime) -> datetime | None:
        """Enqueue a job, unless the last job is unfinished and the schedule has overlap="skip"."""
        job_id = self.last_job_id
        if job_id is None or self.entry.overlap == "allow" or not is_unfinished(store, job_id):
            spec, call = prepared_job(self.entry.task, *self.entry.call)
            inserted = new_job(store, store.enqueue, spec_at(spec, self.entry, due, jitter=0.0), call)
            self.last_job_id = inserted.id if inserted else job_id
        return self.entry.timetable.after(due, planned=due)


def planned(schedules: bool | Sequence[Any]) -> list[PlannedSchedule]:
    """Return all schedules of the project (for `True`), or the schedules of these tasks.

    Raises ValueError if a task has no schedule.
    """
    entries, _problems = all_entries()
    if schedules is not True:
        names = {name_of(task) for task in schedules or ()}
        if unscheduled := names - {entry.task for entry in entries}:
            raise ValueError(f"{min(unscheduled)} has no schedule. Put @periodic above @job or @task.")
        entries = [entry for entry in entries if entry.task in names]
    return [PlannedSchedule(entry) for entry in entries]
