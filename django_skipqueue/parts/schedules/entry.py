"""The definitions of schedules in code and settings, and the statements by which supervisors store them in rows.

A `ScheduleEntry` defines a task, its arguments and its times. It can always be stored. If its method `check` raises
nothing, its task can be enqueued with its arguments.

`@periodic` and `SKIPQUEUE["PERIODIC"]` make the entries of a process, each with a unique name. An error in an entry of
the code raises at import. An error in an entry of the settings is reported by a system check, and logged by
supervisors.

Supervisors store the entries of their code and settings in rows, and delete a row once no supervisor has its entry in
its code. If two deployments run at the same time, they do not overwrite each other's rows in turn: the newer
deployment's definition stays (see `CONFIRM`), and only supervisors with the row's definition fire it. With several
databases, an entry is stored only in the database of its task's jobs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, get_args

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from ...conf import load
from ...exceptions import InvalidOption, SkipQueueError, UnknownTask
from ...jobs.placement import database_of_schedule
from ...jobs.registry import registry, where_to_look
from ...jobs.task import Task
from ...queue.store import Store
from ...values.bounds import check_key
from ...values.codec import decode, encode
from ...values.records import EncodedCall, JobSpec
from .timetable import Timetable, instant, timetable

CatchUp = Literal["latest", "all", "skip"]
"""What to enqueue for times that passed while no supervisor ran: a job for the latest time, for each time, or none."""

Overlap = Literal["allow", "skip"]
"""Whether to enqueue a job while the schedule's last job is unfinished."""

Source = Literal["code", "settings", "admin"]

LONGEST_JITTER = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class ScheduleEntry:
    """The definition of a schedule. `jitter` is in seconds."""

    name: str
    task: str
    source: Source
    cron: str = ""
    interval: timedelta | None = None
    timezone: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    catch_up: CatchUp = "latest"
    overlap: Overlap = "allow"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Raise `InvalidOption` if a value is not valid, `InvalidArguments` if the arguments cannot be stored."""
        for option, text in (("name", self.name), ("task", self.task), ("timezone", self.timezone)):
            if not isinstance(text, str) or not text.strip():
                raise InvalidOption(f"{option} must be a str that is not empty, not {text!r}.")
            check_key(option, text)
        for option, value, allowed in (
            ("catch_up", self.catch_up, get_args(CatchUp)),
            ("overlap", self.overlap, get_args(Overlap)),
        ):
            if value not in allowed:
                raise InvalidOption(f"{option} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
        check_call(self.args, self.kwargs)
        encode("args", list(self.args))
        encode("kwargs", dict(self.kwargs))
        _ = self.timetable

    @property
    def timetable(self) -> Timetable:
        return timetable(cron=self.cron, interval=self.interval, zone=self.timezone)

    @property
    def call(self) -> tuple[list[Any], dict[str, Any]]:
        return list(self.args), dict(self.kwargs)

    def values(self) -> dict[str, Any]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        interval = None if self.interval is None else self.interval.total_seconds()
        return columns | {"args": list(self.args), "kwargs": dict(self.kwargs), "interval": interval}

    @property
    def database(self) -> str:
        """The alias of the database that stores the entry's row and jobs. The task must be registered."""
        task = registry.get(self.task)
        return database_of_schedule(task, task.encoded(*self.call))

    @property
    def digest(self) -> str:
        """A hash of the definition."""
        return hashlib.sha256(json.dumps(self.values(), sort_keys=True).encode()).hexdigest()[:24]

    def check(self) -> None:
        """Raise a `SkipQueueError` if the task is unknown or cannot be enqueued with these arguments."""
        task = known_task(self.task)
        refuse_computed(task)
        task.encoded(*self.call)


def columns_of_times(cron_or_interval: object) -> dict[str, Any]:
    """Return the column for a cron expression or an interval. Raises `InvalidOption` for any other type."""
    if isinstance(cron_or_interval, str):
        return {"cron": " ".join(cron_or_interval.split())}
    if isinstance(cron_or_interval, timedelta):
        return {"interval": cron_or_interval}
    raise InvalidOption(
        f"a schedule is a cron expression, such as '0 9 * * mon-fri', or a timedelta, not {cron_or_interval!r}."
    )


def jitter_seconds(jitter: object) -> float:
    """Return the longest random delay in seconds. Raises `InvalidOption` if the value is not valid."""
    seconds = jitter.total_seconds() if isinstance(jitter, timedelta) else 0 if jitter is None else jitter
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOption(f"jitter must be a timedelta or seconds, not {jitter!r}.")
    if not 0 <= seconds <= LONGEST_JITTER.total_seconds():
        raise InvalidOption(f"jitter must be from 0 to {LONGEST_JITTER.days} day, not {jitter!r}.")
    return float(seconds)


def prepared_job(task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[JobSpec, EncodedCall]:
    """Prepare a job of this task. Runs no code of the project, because supervisors call it.

    Raises `UnknownTask`, `InvalidArguments`, or `InvalidOption` if an option of the task calls code of the project.
    """
    task = known_task(task_name)
    refuse_computed(task)
    return task.spec(), task.encoded_from_json(args, kwargs)


def check_call(args: object, kwargs: object) -> None:
    """Raise `InvalidOption` unless `args` is a list and `kwargs` a mapping."""
    if not isinstance(args, list | tuple):
        raise InvalidOption(f"args must be a list, not {args!r}.")
    if not isinstance(kwargs, Mapping):
        raise InvalidOption(f"kwargs must be a dict, not {kwargs!r}.")


def stored_call(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments by the task's annotations into their stored form. Raises the same errors as `.defer()`."""
    check_call(args, kwargs)
    refuse_computed(task)
    call = task.encoded(args, kwargs)
    return {"args": decode(call.args), "kwargs": decode(call.kwargs)}


def known_task(name: str) -> Task[Any, Any]:
    """Return the task with this name. Raises `UnknownTask` with a hint if there is none."""
    try:
        return registry.get(name)
    except UnknownTask as error:
        raise UnknownTask(f"{error} {where_to_look(name)}") from None


def refuse_computed(task: Task[Any, Any]) -> None:
    """Raise `InvalidOption` if enqueuing the task calls a function of the project."""
    if task.options.calls_project:
        raise InvalidOption(
            f"{task.name} has a function as unique_key, which a supervisor must not call. Give the task a unique_key "
            "that is a str, or schedule a task that defers this one."
        )


Problem = tuple[str, str]
"""The name of an entry, and a sentence that says what is wrong with the entry."""


entries: dict[str, tuple[ScheduleEntry, Any]] = {}
"""The entries made by `@periodic`, by name, each with its task."""


def add_entry(entry: ScheduleEntry, task: Any) -> None:
    """Add the entry of a task. If its module is reloaded, the new entry replaces the old one.

    Raises `InvalidOption` if another entry has the same name.
    """
    existing_entry, existing_task = entries.get(entry.name, (None, None))
    if existing_entry is not None and (existing_task is task or existing_entry.task != entry.task):
        raise InvalidOption(
            f"two schedules are called {entry.name!r}. Give one of them another name: @periodic(…, name=…)."
        )
    entries[entry.name] = entry, task


def all_entries() -> tuple[list[ScheduleEntry], list[Problem]]:
    """Return the valid entries of code and settings, and the problems of all other entries.

    Return nothing if `SKIPQUEUE` is not valid, because the system checks report that.
    """
    try:
        definitions: list[tuple[str, Any]] = [
            *((name, entry) for name, (entry, _) in entries.items()),
            *load().periodic.items(),
        ]
    except ImproperlyConfigured:
        return [], []
    valid: dict[str, ScheduleEntry] = {}
    problems: list[Problem] = []
    for name, definition in definitions:
        try:
            entry = definition if isinstance(definition, ScheduleEntry) else from_settings(name, definition)
            entry.check()
        except SkipQueueError as error:
            problems.append((name, str(error)))
            continue
        if name in valid:
            problems.append((name, f"the schedule {name!r} is in the code and in SKIPQUEUE['PERIODIC']."))
        else:
            valid[name] = entry
    return list(valid.values()), problems


def from_settings(name: str, options: Mapping[str, Any]) -> ScheduleEntry:
    values = dict(options)
    cron_or_interval = values.pop("cron") if "cron" in values else values.pop("every")
    zone = values.pop("timezone", None) or django_settings.TIME_ZONE
    jitter = jitter_seconds(values.pop("jitter", None))
    call = stored_call(known_task(values["task"]), values.pop("args", []), values.pop("kwargs", {}))
    times = columns_of_times(cron_or_interval)
    return ScheduleEntry(name=name, source="settings", timezone=zone, jitter=jitter, **call, **times, **values)


def check_periodic(**_: Any) -> list[CheckMessage]:
    """E008: a schedule cannot fire because of its task, arguments, cron expression or time zone."""
    _entries, problems = all_entries()
    return [
        Error(
            f"The schedule {name!r} cannot fire: {problem}",
            hint="For examples, see the documentation's page about schedules (docs/how-to/periodic.md).",
            id="skipqueue.E008",
        )
        for name, problem in problems
    ]


UNCONFIRMED_SECONDS = 120.0
"""A definition counts as retired this many seconds after a supervisor last confirmed it."""

NEXT_TIME_MARGIN = 10.0
"""The next time in a row may be this many seconds later than the next time that is computed now."""

RETIRED_KEPT_SECONDS = 7 * 86_400.0
"""A supervisor keeps a retired row for this many seconds, with its pause and last run: its code may come back."""


# Sent by synchronise. Returns the database's clock, in seconds since the epoch. Reads no table.
CLOCK_IN_SECONDS = "SELECT extract(epoch FROM statement_timestamp())::float8"

# Sent by synchronise. Returns the names of the schedules whose rows now have the definitions of this process. When a
# supervisor starts (`has_started` is false), its definition replaces the row's definition. The exception: if the row's
# previous definition is the supervisor's, then a newer deployment has replaced it, and this supervisor belongs to the
# older deployment. Later on, a supervisor only replaces a definition that no supervisor has confirmed for `stale`
# seconds, for example after a rollback. The row keeps its pause, its last run and, if its times have not changed, its
# next time. Rows that were added in the admin do not change. Index: the unique index of names. The rows come in the
# order of names, so that two supervisors never deadlock.
CONFIRM = """
INSERT INTO skipqueue_schedule AS schedule (
    name, task, args, kwargs, cron, "interval", timezone, catch_up, overlap, jitter, source, digest, next_run_at,
    fire_at, confirmed_at
)
SELECT
    name, task, args, kwargs, cron, make_interval(secs => "interval"), timezone, catch_up, overlap, jitter, source,
    digest, to_timestamp(next), to_timestamp(next), statement_timestamp()
FROM json_to_recordset(%(entries)s::json) AS entry (
    name text, task text, args jsonb, kwargs jsonb, cron text, "interval" float8, timezone text, catch_up text,
    overlap text, jitter float8, source text, digest text, next float8
)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    task = EXCLUDED.task,
    args = EXCLUDED.args,
    kwargs = EXCLUDED.kwargs,
    cron = EXCLUDED.cron,
    "interval" = EXCLUDED."interval",
    timezone = EXCLUDED.timezone,
    catch_up = EXCLUDED.catch_up,
    overlap = EXCLUDED.overlap,
    jitter = EXCLUDED.jitter,
    source = EXCLUDED.source,
    next_run_at = CASE
        WHEN (schedule.cron, schedule.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
            AND schedule."interval" IS NOT DISTINCT FROM EXCLUDED."interval"
            THEN schedule.next_run_at
        ELSE EXCLUDED.next_run_at
    END,
    fire_at = CASE
        WHEN schedule.digest = EXCLUDED.digest THEN schedule.fire_at
        WHEN (schedule.cron, schedule.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
            AND schedule."interval" IS NOT DISTINCT FROM EXCLUDED."interval"
            THEN schedule.next_run_at
        ELSE EXCLUDED.fire_at
    END,
    error = CASE WHEN schedule.digest = EXCLUDED.digest THEN schedule.error ELSE '' END,
    previous_digest = CASE
        WHEN schedule.digest = EXCLUDED.digest THEN schedule.previous_digest ELSE schedule.digest
    END,
    digest = EXCLUDED.digest,
    confirmed_at = statement_timestamp(),
    retired_at = NULL
WHERE
    schedule.source <> 'admin'
    AND (
        schedule.digest = EXCLUDED.digest
        OR (NOT %(has_started)s AND schedule.previous_digest <> EXCLUDED.digest)
        OR schedule.confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)
    )
RETURNING name
"""

# Sent by synchronise. Retires the schedules that no supervisor has confirmed for `stale` seconds. The table has one row
# per schedule.
RETIRE = """
UPDATE skipqueue_schedule
SET retired_at = statement_timestamp()
WHERE
    source <> 'admin'
    AND retired_at IS NULL
    AND confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)
"""

# Sent by synchronise. Deletes schedules that were retired more than `kept` seconds ago. The table has one row per
# schedule.
REMOVE = """
DELETE FROM skipqueue_schedule
WHERE source <> 'admin' AND retired_at <= statement_timestamp() - make_interval(secs => %(kept)s)
"""

# Sent by synchronise. Returns which of these names belong to schedules that were added in the admin. Index: the unique
# index of names.
ADMIN_SCHEDULES = "SELECT name FROM skipqueue_schedule WHERE name = ANY (%(names)s::text[]) AND source = 'admin'"


def synchronise(store: Store, entries: Sequence[ScheduleEntry], *, has_started: bool) -> list[str]:
    """Store the entries. Return the names of entries that were not stored because a schedule of the admin has the name.

    `has_started`: whether this supervisor has stored its entries before.
    """
    stored: set[str] = set()
    if entries:
        ((now,),) = store.rows(CLOCK_IN_SECONDS)
        first_times = [entry.timetable.first(instant(now)) for entry in entries]
        documents = [
            {**entry.values(), "digest": entry.digest, "next": first_time and first_time.timestamp()}
            for entry, first_time in zip(entries, first_times, strict=True)
        ]
        values = {"entries": encode("entries", documents), "has_started": has_started, "stale": UNCONFIRMED_SECONDS}
        stored = {name for (name,) in store.rows(CONFIRM, values)}
    store.execute(RETIRE, {"stale": UNCONFIRMED_SECONDS})
    store.execute(REMOVE, {"kept": RETIRED_KEPT_SECONDS})
    not_stored = [entry.name for entry in entries if entry.name not in stored]
    return [name for (name,) in store.rows(ADMIN_SCHEDULES, {"names": not_stored})] if not_stored else []


# Sent by bring_back. For each schedule that waits for its next time, returns the database's clock in seconds since the
# epoch, the id, the columns of the timetable, and the next time. The table has one row per schedule.
WAITING_SCHEDULES = """
SELECT
    extract(epoch FROM statement_timestamp())::float8, id, cron, "interval", timezone,
    extract(epoch FROM next_run_at)::float8
FROM skipqueue_schedule
WHERE paused_at IS NULL AND next_run_at > statement_timestamp() + make_interval(secs => %(margin)s)
"""

# Sent by bring_back. Returns the names of the schedules whose next time the statement has corrected. The statement
# reads the clock after it has locked the rows: a supervisor may just have fired a schedule, and the next time must not
# have passed in the meantime. Index: the primary key, in its order, so that two supervisors never deadlock.
BRING_BACK = """
WITH ahead AS MATERIALIZED (
    SELECT schedule.id, to_timestamp(entry.next) AS next
    FROM
        json_to_recordset(%(entries)s::json) AS entry (id bigint, next float8)
        JOIN skipqueue_schedule AS schedule ON schedule.id = entry.id
    WHERE
        schedule.paused_at IS NULL
        AND schedule.next_run_at > to_timestamp(entry.next) + make_interval(secs => %(margin)s)
    ORDER BY schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE skipqueue_schedule AS schedule
SET next_run_at = ahead.next,
    fire_at = ahead.next
FROM ahead
WHERE schedule.id = ahead.id AND ahead.next > clock_timestamp()
RETURNING schedule.name
"""


def bring_back(store: Store) -> list[str]:
    """Correct next times that are too far in the future. Return the names of the corrected schedules.

    Such times remain if the database's clock was ahead for a moment, for example in a restored virtual machine.
    """
    corrections = []
    for now, id, cron, interval, zone, stored_next in store.rows(WAITING_SCHEDULES, {"margin": NEXT_TIME_MARGIN}):
        correct_next = None
        with suppress(InvalidOption):  # a row that somebody has edited by hand: `fire` notes the error
            correct_next = timetable(cron=cron, interval=interval, zone=zone).first(instant(now))
        if correct_next is not None and correct_next.timestamp() + NEXT_TIME_MARGIN < stored_next:
            corrections.append({"id": id, "next": correct_next.timestamp()})
    if not corrections:
        return []
    rows = store.rows(BRING_BACK, {"entries": json.dumps(corrections), "margin": NEXT_TIME_MARGIN})
    return [name for (name,) in rows]
