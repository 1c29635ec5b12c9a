"""The `OPTIONS` of an alias in `TASKS`, as one typed value with defaults.

Invariant: reading the options sends no query and imports nothing, because backends are made while modules are imported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from typing import Any

from django.utils.module_loading import import_string

from ...conf import own_retention_problems, settings
from ...exceptions import InvalidOption
from ...jobs.options import Options
from ...values.backoff import Backoff
from ...values.bounds import did_you_mean
from ...values.settings import Retention
from ...worker.preflight import engine_problem
from .framework import settings_of


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """One field for each key of `OPTIONS`, in lower case."""

    database: str | None = None
    """The alias of the database that holds the jobs; `None`: as `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`."""
    max_attempts: int | None = None
    """Attempts before a job fails, for tasks without their own; `None`: `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """From the number of the failed attempt to seconds, or the dotted path of such a function."""
    timeout: float | None = None
    """Seconds after which an attempt is interrupted and fails; `None`: never."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """How long finished jobs are kept, by status, where this is shorter than `SKIPQUEUE["RETENTION"]`."""

    @property
    def default_database(self) -> str:
        """The alias of the database for an id that names none."""
        return self.database or settings.database


KNOWN = tuple(field.name for field in fields_of(BackendOptions))


def parsed(given: Mapping[str, Any]) -> BackendOptions:
    """The options of one alias, with defaults. Ignores unknown options, which `problems` reports."""
    known = {name: given[name] for name in KNOWN if given.get(name) is not None}
    return BackendOptions(**known)


def options_for(alias: str) -> BackendOptions:
    """The options of this alias; the defaults if `TASKS` has no such alias."""
    return parsed(settings_of(alias).get("OPTIONS", {}))


def resolved(backoff: Backoff | str) -> Backoff:
    found: Backoff = import_string(backoff) if isinstance(backoff, str) else backoff
    return found


def problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name in given:
        if name not in KNOWN:
            yield f"there is no option {name!r}.{did_you_mean(str(name), list(KNOWN))}"
    if problem := engine_problem(parsed(given).default_database):
        yield f"'database': {' '.join(problem)}"
    elif given.get("database") and not settings.may_hold_jobs(given["database"]):
        yield f"'database' is {given['database']!r}, which SKIPQUEUE['DATABASES'] does not list."
    try:
        Options(max_attempts=given.get("max_attempts"), timeout=given.get("timeout"))
    except InvalidOption as error:
        yield str(error)
    yield from _backoff_problems(given.get("backoff"))
    if (retention := given.get("retention")) is not None:
        yield from own_retention_problems("'retention'", retention)


def _backoff_problems(backoff: Any) -> Iterator[str]:
    if backoff is None:
        return
    try:
        delay = resolved(backoff)(1)
    except Exception as error:  # the import failed, or the value cannot be called, or it raised
        yield f"'backoff' cannot be used: {type(error).__name__}: {error}"
        return
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not delay >= 0:
        yield f"'backoff' must give seconds for the number of an attempt, but for 1 it gave {delay!r}."
