"""The entries: a task, its arguments, and when they are enqueued; and all entries of this process.

Invariant: an entry that was made can be stored, and its task can be enqueued with these arguments, once it is checked.

The entries of this process are those of `@periodic`, and those of `SKIPQUEUE["PERIODIC"]`. Invariant: names are unique.
What is wrong with an entry of the code raises at import; what is wrong with one of the settings is a problem, which the
system checks report and a supervisor logs.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from ...conf import load
from ...exceptions import InvalidOption, SkipQueueError, UnknownTask
from ...jobs.placement import database_of_schedule
from ...jobs.registry import registry, where_to_look
from ...jobs.task import Task
from ...values.codec import decode, encode
from ...values.columns import check_key
from ...values.records import EncodedCall, JobSpec
from .timetable import Timetable, timetable

CatchUp = Literal["latest", "all", "skip"]
"""For times that passed while no supervisor ran: one job for the latest, one for each, or none."""

Overlap = Literal["allow", "skip"]
"""Whether a job is enqueued while the last one is unfinished."""

Source = Literal["code", "settings", "admin"]

LONGEST_JITTER = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Entry:
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
        """Raise `InvalidOption` for a value that cannot be used, `InvalidArguments` for one that is not JSON."""
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
    def rule(self) -> dict[str, Any]:
        """When it fires, as in the metadata of its jobs."""
        if self.interval is None:
            return {"cron": self.cron, "timezone": self.timezone}
        return {"every": self.interval.total_seconds()}

    @property
    def call(self) -> tuple[list[Any], dict[str, Any]]:
        return list(self.args), dict(self.kwargs)

    def values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "task": self.task,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "cron": self.cron,
            "interval": None if self.interval is None else self.interval.total_seconds(),
            "timezone": self.timezone,
            "catch_up": self.catch_up,
            "overlap": self.overlap,
            "jitter": self.jitter,
            "source": self.source,
        }

    @property
    def database(self) -> str:
        """The alias of the database in which it has its row and its jobs: that of their key, or of its task.

        The task is known.
        """
        task = registry.get(self.task)
        return database_of_schedule(task, task.encoded(*self.call))

    @property
    def digest(self) -> str:
        """Differs as soon as one of the values does."""
        return hashlib.sha256(json.dumps(self.values(), sort_keys=True).encode()).hexdigest()[:24]

    def check(self) -> None:
        """Raise if its task is unknown, or cannot be enqueued with these arguments."""
        task = known_task(self.task)
        refuse_computed(task)
        task.encoded(*self.call)


def when(given: object) -> dict[str, Any]:
    """The columns of a cron expression or an interval. Raises `InvalidOption` for another type."""
    if isinstance(given, str):
        return {"cron": " ".join(given.split())}
    if isinstance(given, timedelta):
        return {"interval": given}
    raise InvalidOption(f"a schedule is a cron expression, such as '0 9 * * mon-fri', or a timedelta, not {given!r}.")


def jitter_seconds(given: object) -> float:
    """The longest delay that is added by chance. Raises `InvalidOption` for a value that cannot be used."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else 0 if given is None else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOption(f"jitter must be a timedelta or seconds, not {given!r}.")
    if not 0 <= seconds <= LONGEST_JITTER.total_seconds():
        raise InvalidOption(f"jitter must be from 0 to {LONGEST_JITTER.days} day, not {given!r}.")
    return float(seconds)


def prepared(task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[JobSpec, EncodedCall]:
    """The job that this task enqueues for these arguments. Runs no code of the project's: it may run in a supervisor.

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


def as_json(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are in a row: what the task's annotations allow is converted. Raises as `.defer()` does."""
    check_call(args, kwargs)
    refuse_computed(task)
    call = task.encoded(args, kwargs)
    return {"args": decode(call.args), "kwargs": decode(call.kwargs)}


def known_task(name: str) -> Task[Any, Any]:
    """The task of this name. Raises `UnknownTask` with a hint."""
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


class Entries:
    def __init__(self) -> None:
        self._entries: dict[str, tuple[Entry, Any]] = {}

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry, _ in self._entries.values())

    def add(self, entry: Entry, target: Any) -> None:
        """Add the entry of a task. That of a reloaded module replaces itself.

        Raises `InvalidOption` if another task, or the same one, has an entry of this name.
        """
        known = self._entries.get(entry.name)
        if known is not None and (known[1] is target or known[0].task != entry.task):
            raise InvalidOption(
                f"two schedules are called {entry.name!r}. Give one of them another name: @periodic(…, name=…)."
            )
        self._entries[entry.name] = entry, target


entries = Entries()


def all_entries() -> tuple[list[Entry], list[Problem]]:
    """The entries of code and settings that can be used, and the problems of the others.

    Nothing of both while `SKIPQUEUE` is not valid, which the checks report.
    """
    try:
        given: Mapping[str, Mapping[str, Any]] = load().periodic
    except ImproperlyConfigured:
        return [], []
    found: dict[str, Entry] = {}
    problems: list[Problem] = []
    for name, entry, error in (*_of_code(), *_of_settings(given)):
        if entry is None:
            problems.append((name, error))
        elif name in found:
            problems.append((name, f"the schedule {name!r} is in the code and in SKIPQUEUE['PERIODIC']."))
        else:
            found[name] = entry
    return list(found.values()), problems


def _of_code() -> Iterator[tuple[str, Entry | None, str]]:
    for entry in entries:
        yield _checked(entry.name, lambda entry=entry: entry)


def _of_settings(given: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Entry | None, str]]:
    for name, options in given.items():
        yield _checked(name, lambda name=name, options=options: from_settings(name, options))


def _checked(name: str, make: Any) -> tuple[str, Entry | None, str]:
    try:
        entry: Entry = make()
        entry.check()
    except SkipQueueError as error:
        return name, None, str(error)
    return name, entry, ""


def from_settings(name: str, options: Mapping[str, Any]) -> Entry:
    given = dict(options)
    moment = given.pop("cron") if "cron" in given else given.pop("every")
    zone = given.pop("timezone", None) or django_settings.TIME_ZONE
    jitter = jitter_seconds(given.pop("jitter", None))
    call = as_json(known_task(given["task"]), given.pop("args", []), given.pop("kwargs", {}))
    return Entry(name=name, source="settings", timezone=zone, jitter=jitter, **call, **when(moment), **given)
