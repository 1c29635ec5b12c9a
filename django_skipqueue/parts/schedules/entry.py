"""The entries of schedules (a task, its arguments, and its times), and how supervisors write them into rows.

Invariant: a `ScheduleEntry` can be stored. After its method `check`, its task can be enqueued with its arguments.

`@periodic` and `SKIPQUEUE["PERIODIC"]` make the entries of a process. Invariant: their names are unique. An error in an
entry of the code raises at import. For an error in an entry of the settings, the system checks have a message, and a
supervisor has a log line.

Supervisors write the entries of their code and settings into rows, and remove the rows that no supervisor has in its
code any more. Invariant: two deployments that run at once do not change a row to and fro: the newer deployment keeps it
(`CONFIRM` says how), and only supervisors with the definition of the row fire it. Invariant: with several databases, an
entry has a row only in the database of its task's jobs.
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
"""For times that passed while no supervisor ran: one job for the latest time, a job for each time, or none."""

Overlap = Literal["allow", "skip"]
"""Whether a supervisor enqueues a job while the last job is unfinished."""

Source = Literal["code", "settings", "admin"]

LONGEST_JITTER = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class ScheduleEntry:
    """The definition of a schedule. Times are seconds."""

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
        """Raise `InvalidOption` for a value that cannot be used, `InvalidArguments` for arguments that are no JSON."""
        for option, text in (("name", self.name), ("task", self.task), ("timezone", self.timezone)):
            if not isinstance(text, str) or not text.strip():
                raise InvalidOption(f"{option} must be a str that is not empty, not {text!r}.")
            check_key(option, text)
        for option, value, known in (
            ("catch_up", self.catch_up, get_args(CatchUp)),
            ("overlap", self.overlap, get_args(Overlap)),
        ):
            if value not in known:
                raise InvalidOption(f"{option} must be one of {', '.join(map(repr, known))}, not {value!r}.")
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
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        interval = None if self.interval is None else self.interval.total_seconds()
        return columns | {"args": list(self.args), "kwargs": dict(self.kwargs), "interval": interval}

    @property
    def database(self) -> str:
        """The alias of the database of the entry's row and jobs. The registry must have the task."""
        task = registry.get(self.task)
        return database_of_schedule(task, task.encoded(*self.call))

    @property
    def digest(self) -> str:
        """A hash of the values."""
        return hashlib.sha256(json.dumps(self.values(), sort_keys=True).encode()).hexdigest()[:24]

    def check(self) -> None:
        """Raise a `SkipQueueError` if the task is unknown, or cannot be enqueued with these arguments."""
        task = known_task(self.task)
        refuse_computed(task)
        task.encoded(*self.call)


def columns_of_times(given: object) -> dict[str, Any]:
    """Return the column of a cron expression or an interval. Raises `InvalidOption` for another type."""
    if isinstance(given, str):
        return {"cron": " ".join(given.split())}
    if isinstance(given, timedelta):
        return {"interval": given}
    raise InvalidOption(f"a schedule is a cron expression, such as '0 9 * * mon-fri', or a timedelta, not {given!r}.")


def jitter_seconds(given: object) -> float:
    """Return the longest random delay. Raises `InvalidOption` for a value that cannot be used."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else 0 if given is None else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOption(f"jitter must be a timedelta or seconds, not {given!r}.")
    if not 0 <= seconds <= LONGEST_JITTER.total_seconds():
        raise InvalidOption(f"jitter must be from 0 to {LONGEST_JITTER.days} day, not {given!r}.")
    return float(seconds)


def prepared_job(task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[JobSpec, EncodedCall]:
    """Return the job of this task for these arguments. Runs no code of the project's, so that supervisors may call it.

    Raises `UnknownTask`, `InvalidArguments`, or `InvalidOption` for a task whose options the project's code computes.
    """
    task = known_task(task_name)
    refuse_computed(task)
    return task.spec(), task.encoded_from_json(args, kwargs)


def check_call(args: object, kwargs: object) -> None:
    """Raise `InvalidOption` if these are no arguments."""
    if not isinstance(args, list | tuple):
        raise InvalidOption(f"args must be a list, not {args!r}.")
    if not isinstance(kwargs, Mapping):
        raise InvalidOption(f"kwargs must be a dict, not {kwargs!r}.")


def stored_call(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as a row has them, converted as the task's annotations say. Raises as `.defer()` does."""
    check_call(args, kwargs)
    refuse_computed(task)
    call = task.encoded(args, kwargs)
    return {"args": decode(call.args), "kwargs": decode(call.kwargs)}


def known_task(name: str) -> Task[Any, Any]:
    """Return the task of this name. Raises `UnknownTask` with a hint."""
    try:
        return registry.get(name)
    except UnknownTask as error:
        raise UnknownTask(f"{error} {where_to_look(name)}") from None


def refuse_computed(task: Task[Any, Any]) -> None:
    """Raise `InvalidOption` if enqueuing the task calls a function of the project's."""
    if task.options.calls_project:
        raise InvalidOption(
            f"{task.name} has a function as unique_key, which a supervisor must not call. Give the task a unique_key "
            "that is a str, or schedule a task that defers this one."
        )


Problem = tuple[str, str]
"""The name of an entry, and a sentence about what is wrong with it."""


entries: dict[str, tuple[ScheduleEntry, Any]] = {}
"""The entries of `@periodic` by name, each with its task."""


def add_entry(entry: ScheduleEntry, task: Any) -> None:
    """Add the entry of a task. The entry of a reloaded module replaces the old one.

    Raises `InvalidOption` if another entry has this name.
    """
    known = entries.get(entry.name)
    if known is not None and (known[1] is task or known[0].task != entry.task):
        raise InvalidOption(
            f"two schedules are called {entry.name!r}. Give one of them another name: @periodic(…, name=…)."
        )
    entries[entry.name] = entry, task


def all_entries() -> tuple[list[ScheduleEntry], list[Problem]]:
    """Return the entries of code and settings that can be used, and the problems of the entries that cannot.

    Return nothing while `SKIPQUEUE` is not valid, which the checks report.
    """
    try:
        listed: list[tuple[str, Any]] = [
            *((name, entry) for name, (entry, _) in entries.items()),
            *load().periodic.items(),
        ]
    except ImproperlyConfigured:
        return [], []
    found: dict[str, ScheduleEntry] = {}
    problems: list[Problem] = []
    for name, given in listed:
        try:
            entry = given if isinstance(given, ScheduleEntry) else from_settings(name, given)
            entry.check()
        except SkipQueueError as error:
            problems.append((name, str(error)))
            continue
        if name in found:
            problems.append((name, f"the schedule {name!r} is in the code and in SKIPQUEUE['PERIODIC']."))
        else:
            found[name] = entry
    return list(found.values()), problems


def from_settings(name: str, options: Mapping[str, Any]) -> ScheduleEntry:
    given = dict(options)
    moment = given.pop("cron") if "cron" in given else given.pop("every")
    zone = given.pop("timezone", None) or django_settings.TIME_ZONE
    jitter = jitter_seconds(given.pop("jitter", None))
    call = stored_call(known_task(given["task"]), given.pop("args", []), given.pop("kwargs", {}))
    times = columns_of_times(moment)
    return ScheduleEntry(name=name, source="settings", timezone=zone, jitter=jitter, **call, **times, **given)


def check_periodic(**_: Any) -> list[CheckMessage]:
    """E008: a schedule cannot fire, by its task, its arguments, its cron expression or its time zone."""
    return [
        Error(
            f"The schedule {name!r} cannot fire: {problem}",
            hint="The page Schedules of the documentation (docs/how-to/periodic.md) has examples.",
            id="skipqueue.E008",
        )
        for name, problem in all_entries()[1]
    ]


UNCONFIRMED_SECONDS = 120.0
"""Seconds after its last confirmation from which on a definition counts as retired: no supervisor has it."""

NEXT_TIME_MARGIN = 10.0
"""Seconds by which the next time in a row may be later than the next time by the clock of now."""

RETIRED_KEPT_SECONDS = 7 * 86_400.0
"""Seconds for which a retired row keeps its pause and its last run, in case all supervisors were only down."""


# synchronise → the database's clock, in seconds since the epoch. Reads no table.
CLOCK_IN_SECONDS = "SELECT extract(epoch FROM statement_timestamp())::float8"

# synchronise → the names of the schedules that now have the definitions of this process. When a supervisor starts
# (`has_started` is false), its definition replaces the definition of the row, except if it is the previous definition
# of the row: then a newer deployment has replaced it, and this supervisor belongs to the older deployment. Later on it
# replaces a definition that no supervisor has confirmed for `stale` seconds, as after a rollback. The row keeps its
# pause, its last run and, if the times are equal, its next time. Rows of the admin do not change.
# Index: the unique index of names. The rows come in the order of names, so that two supervisors never deadlock.
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

# synchronise: retires the schedules that no supervisor has confirmed for `stale` seconds. The table has a row for each
# schedule.
RETIRE = """
UPDATE skipqueue_schedule
SET retired_at = statement_timestamp()
WHERE
    source <> 'admin'
    AND retired_at IS NULL
    AND confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)
"""

# synchronise: deletes the schedules that retired more than `kept` seconds ago. The table has a row for each schedule.
REMOVE = """
DELETE FROM skipqueue_schedule
WHERE source <> 'admin' AND retired_at <= statement_timestamp() - make_interval(secs => %(kept)s)
"""

# synchronise → which of these names schedules of the admin have. Index: the unique index of names.
NAMES_OF_ADMIN = "SELECT name FROM skipqueue_schedule WHERE name = ANY (%(names)s::text[]) AND source = 'admin'"


def synchronise(store: Store, entries: Sequence[ScheduleEntry], *, has_started: bool) -> list[str]:
    """Write the entries. Return the names of entries that are not written, because schedules of the admin have them.

    `has_started`: this supervisor has written the entries before.
    """
    written: set[str] = set()
    if entries:
        ((now,),) = store.rows(CLOCK_IN_SECONDS)
        moments = [entry.timetable.first(instant(now)) for entry in entries]
        documents = [
            {**entry.values(), "digest": entry.digest, "next": moment and moment.timestamp()}
            for entry, moment in zip(entries, moments, strict=True)
        ]
        values = {"entries": encode("entries", documents), "has_started": has_started, "stale": UNCONFIRMED_SECONDS}
        written = {name for (name,) in store.rows(CONFIRM, values)}
    store.execute(RETIRE, {"stale": UNCONFIRMED_SECONDS})
    store.execute(REMOVE, {"kept": RETIRED_KEPT_SECONDS})
    others = [entry.name for entry in entries if entry.name not in written]
    return [name for (name,) in store.rows(NAMES_OF_ADMIN, {"names": others})] if others else []


# bring_back → for each schedule that waits for its next time: the database's clock in seconds since the epoch, the id,
# the columns of the timetable, and the next time. The table has a row for each schedule.
WAITING_SCHEDULES = """
SELECT
    extract(epoch FROM statement_timestamp())::float8, id, cron, "interval", timezone,
    extract(epoch FROM next_run_at)::float8
FROM skipqueue_schedule
WHERE paused_at IS NULL AND next_run_at > statement_timestamp() + make_interval(secs => %(margin)s)
"""

# bring_back → the names of the schedules that now have these next times. The statement reads the clock after it has
# locked the rows, since a supervisor may just have fired a schedule: a time that has passed meanwhile is no next time.
# Index: the primary key, in its order, so that two supervisors never deadlock.
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
    """Correct the next times that are too far in the future. Return the names of the schedules.

    A database whose clock was ahead for a moment, as in a restored virtual machine, has left times far in the future.
    """
    ahead = []
    for now, id, cron, interval, zone, next in store.rows(WAITING_SCHEDULES, {"margin": NEXT_TIME_MARGIN}):
        first = None
        with suppress(InvalidOption):  # a row that somebody has edited by hand: `fire` notes the error
            first = timetable(cron=cron, interval=interval, zone=zone).first(instant(now))
        if first is not None and first.timestamp() + NEXT_TIME_MARGIN < next:
            ahead.append({"id": id, "next": first.timestamp()})
    if not ahead:
        return []
    rows = store.rows(BRING_BACK, {"entries": json.dumps(ahead), "margin": NEXT_TIME_MARGIN})
    return [name for (name,) in rows]
