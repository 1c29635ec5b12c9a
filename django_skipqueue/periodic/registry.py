"""The entries of this process: those of `@periodic`, and those of `SKIPQUEUE["PERIODIC"]`.

Invariant: names are unique. What is wrong with an entry of the code raises at import; what is wrong with one of the
settings is a problem, which the system checks report and a supervisor logs.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from ..conf import load
from ..exceptions import InvalidOption, SkipQueueError
from .entry import Entry, as_json, jitter_seconds, known_task, when

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
