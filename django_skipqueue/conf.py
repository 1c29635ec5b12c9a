"""The `SKIPQUEUE` setting as one typed, validated object with defaults, loaded at its first use.

`settings` never returns a value of the wrong type: loading raises an error that lists all `problems()`.
"""

import functools
import logging
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .parts.alerts.settings import AlertSettings
from .parts.archive.settings import ArchiveSettings
from .parts.databases.settings import DatabaseSettings
from .parts.schedules.settings import ScheduleSettings
from .parts.steps.settings import StepSettings
from .values import link_template
from .values.bounds import NUMBER_RANGES, close_to, did_you_mean
from .values.redaction import words
from .values.settings import LONGEST_RETENTION, OneDatabase, Retention, as_time, is_retention, queue_problems

METRICS_TOKEN = re.compile(r"[!-~]{16,}")
"""A valid METRICS_TOKEN: long enough that nobody guesses it, and made of characters that an HTTP header can have."""

NAMES_TUPLE = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AppSetting:
    """A key of the setting `SKIPQUEUE` that is read by a separate app, such as `contrib.celery`."""

    made_from: Callable[[Any], Any]
    """Makes the setting's Python value from the valid value in the project's settings, or from `{}` if there is
    none."""
    problems: Callable[[str, object], Iterator[str]]
    """Yields one sentence for each mistake, given the setting's name and its value in the project's settings."""
    external_queues: Callable[[Any], Mapping[str, str]]
    """Returns the queues whose jobs run outside of our workers, each with the name of its carrier, such as a broker."""


APP_SETTINGS: dict[str, AppSetting] = {}
"""The settings of separate apps, by lower-case key. Each app adds its own settings when Django loads the app."""

SUCCESSORS = {
    "ALERTS": "The rules of the doctor raise alerts. RULES has their thresholds, and ALERTS_WEBHOOK the address."
}
"""For each key that a later version removed, a hint which names its replacement."""

APPS_OF_KEYS = {"CARRIERS": "django_skipqueue.contrib.celery"}
"""For each key that a separate app of this package reads, the name of the app."""


@dataclass(frozen=True, kw_only=True)
class Settings(
    AlertSettings,
    ArchiveSettings,
    DatabaseSettings,
    ScheduleSettings,
    StepSettings,
    OneDatabase,
):
    """One field for each key of `SKIPQUEUE`, in lower case. Times are seconds.

    The base classes define the settings of the parts, such as alerts. If a field's metadata has `problems`, it is the
    function that checks the field's value.
    """

    max_attempts: int = 10
    """The number of attempts before a job fails, for tasks that do not set `max_attempts` themselves."""

    poll_interval: float = 2.0
    """How often an idle worker polls for jobs if no notification arrives."""

    heartbeat_interval: float = 10.0
    """How often a supervisor writes the heartbeats of its workers."""

    worker_timeout: float = 60.0
    """After this time without a heartbeat, a worker counts as dead, and its jobs are recovered."""

    shutdown_timeout: float = 30.0
    """How long a stopping worker waits for its running jobs before it releases them."""

    unknown_task_grace: float = 3600.0
    """How long a job with an unknown task is retried before it fails."""

    max_argument_bytes: int = 1_048_576
    """The largest size of the arguments of one job, in bytes of JSON."""

    max_result_bytes: int = 1_048_576
    """The largest size of a task's return value, in bytes of JSON."""

    middleware: tuple[str, ...] = ()
    """Dotted paths of functions that wrap each attempt: each takes the job and returns a context manager."""

    redact: tuple[str, ...] = ()
    """Names of arguments whose values the admin and the log mask, in addition to the names that are always masked."""

    capture_logs: str | None = "INFO"
    """The lowest level of the log records that are stored with the attempt that wrote them; `None` stores no
    records."""

    links: dict[str, str] = field(default_factory=dict)
    """Links on the admin page of a job: labels, each with an address that may contain fields such as `{job_id}`."""

    retention: dict[str, Retention] = field(
        default_factory=lambda: {
            "completed": timedelta(days=1),
            "discarded": timedelta(days=7),
            "failed": timedelta(days=30),
        }
    )
    """How long finished jobs are kept, by status: a timedelta or seconds. `None` keeps them forever, `0` not at all."""

    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The limits of whole queues, by the name of the queue: see `values.settings.queue_problems`."""

    rules: dict[str, Any] = field(default_factory=dict)
    """The thresholds of the doctor's rules, by rule code. A threshold is a number, `None` to turn the rule off, or a
    dict of thresholds by queue name, in which `*` stands for all other queues."""

    searchable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each task name, the arguments by which operators can search all jobs of the task. Each argument has an
    index."""
    deployment: str | None = None
    """The name of the deployed version, such as a commit id. It is stored with each worker and each cause of
    failures."""

    metrics_token: str | None = None
    """The token with which Prometheus may read the metrics. If it is `None`, only staff users may read them."""

    of_apps: Mapping[str, Any] = field(default_factory=dict, metadata={"is_key": False})
    """The settings of separate apps, by lower-case key."""

    @property
    def external_queues(self) -> dict[str, str]:
        """The queues whose jobs an external engine (a carrier) runs, each with the carrier's name in the settings.

        A worker serves such a queue only if `--queues` names it.
        """
        carriers_by_queue = (APP_SETTINGS[key].external_queues(value) for key, value in self.of_apps.items())
        return {queue: carrier for carriers in carriers_by_queue for queue, carrier in carriers.items()}

    def retention_of(self, status: str) -> timedelta | None:
        """How long jobs that finished with this status are kept; `None` means forever."""
        return as_time(self.retention[status])


DEFAULTS = Settings()

OPTIONS_OF_RUNWORKER = {
    "CONCURRENCY", "DRAIN", "HEALTH_HOST", "HEALTH_PORT", "LOG_FORMAT", "MAX_JOBS", "MAX_JOBS_PER_WORKER",
    "MAX_MEMORY_MB", "NAME", "NO_LISTEN", "PROCESSES", "RELOAD",
}  # fmt: skip
"""The options of `runworker` that are not settings, because they may differ between workers."""


def add_setting(key: str, setting: AppSetting) -> None:
    """Allow this key in `SKIPQUEUE`. The argument `key` is in lower case."""
    APP_SETTINGS[key] = setting
    load.cache_clear()


@functools.cache
def load() -> Settings:
    """The project's settings, with defaults. Raises `ImproperlyConfigured` with a sentence for each problem."""
    sentences = list(problems())
    if sentences:
        raise ImproperlyConfigured(" ".join(sentences))
    project_values = {key.lower(): value for key, value in _project_setting().items()}
    if "retention" in project_values:
        project_values["retention"] = DEFAULTS.retention | project_values["retention"]
    project_values["of_apps"] = {
        key: setting.made_from(project_values.pop(key, {})) for key, setting in APP_SETTINGS.items()
    }
    return Settings(**Settings.completed(project_values))


def load_or_default() -> Settings:
    """The project's settings, or the defaults if the settings are not valid, because `--help` must always work."""
    try:
        return load()
    except ImproperlyConfigured:
        return DEFAULTS


def problems() -> Iterator[str]:
    """One sentence for each unknown key and each value of the wrong type in `SKIPQUEUE`."""
    project_setting = _project_setting()
    if not isinstance(project_setting, dict):
        yield f"SKIPQUEUE must be a dict, not {type(project_setting).__name__}."
        return
    hints = typing.get_type_hints(Settings)
    own_keys = (setting.name for setting in fields(Settings) if setting.metadata.get("is_key", True))
    known_keys = [*own_keys, *APP_SETTINGS]
    for key, value in project_setting.items():
        name = key.lower() if isinstance(key, str) and key.isupper() else None
        if name not in known_keys:
            hint = _hint_for_unknown_key(str(key).upper(), [known.upper() for known in known_keys])
            yield f"SKIPQUEUE has no key {key!r}.{hint}"
        elif name in APP_SETTINGS:
            yield from APP_SETTINGS[name].problems(f"SKIPQUEUE[{key!r}]", value)
        elif name in PROBLEMS:
            yield from PROBLEMS[name](f"SKIPQUEUE[{key!r}]", value)
        elif name in NUMBER_RANGES:
            if not NUMBER_RANGES[name].allows(value):
                yield f"SKIPQUEUE[{key!r}] must be {NUMBER_RANGES[name]}, not {value!r}."
        elif not _is_text(value, hints[name]):
            yield f"SKIPQUEUE[{key!r}] must be {TEXT_TYPES[hints[name]]}, not {value!r}."
    yield from Settings.problems_together(project_setting)


def _project_setting() -> Any:
    return getattr(django_settings, "SKIPQUEUE", {})


def retention_problems(name: str, value: object) -> Iterator[str]:
    """Yield one sentence for each mistake in a retention. `name` is the setting's name in these sentences."""
    if not isinstance(value, dict):
        yield f"{name} must be a dict of finished statuses, not {value!r}."
        return
    for status, duration in value.items():
        if status not in DEFAULTS.retention:
            yield (
                f"{name} has no status {status!r}: the finished ones are "
                f"{', '.join(DEFAULTS.retention)}.{close_to(str(status), list(DEFAULTS.retention))}"
            )
        elif not is_retention(duration):
            yield (
                f"{name}[{status!r}] must be a timedelta, seconds (0 to "
                f"{LONGEST_RETENTION.total_seconds():,.0f}) or None, not {duration!r}."
            )


def own_retention_problems(name: str, value: Any) -> Iterator[str]:
    """Yield one sentence for each mistake in a task's retention, which may not be longer than `RETENTION`."""
    invalid = list(retention_problems(name, value))
    yield from invalid
    for status, duration in {} if invalid else value.items():
        general, own = settings.retention_of(status), as_time(duration)
        if general is not None and (own is None or own > general):
            yield (
                f"{name}[{status!r}] is longer than SKIPQUEUE['RETENTION'] says for all jobs, {general}. "
                "Raise that, and lower it for the others."
            )


def _token_problems(name: str, value: object) -> Iterator[str]:
    """Yield one sentence if the metrics token is not valid. The sentence does not contain the token."""
    if value is not None and not (isinstance(value, str) and METRICS_TOKEN.fullmatch(value)):
        yield (
            f"{name} must be None or a str of at least 16 characters: ASCII without spaces, as "
            "secrets.token_urlsafe() makes it."
        )


LONGEST_DEPLOYMENT = 200
"""The most characters in the setting `DEPLOYMENT`."""


def _deployment_problems(name: str, value: object) -> Iterator[str]:
    is_text = isinstance(value, str) and len(value) <= LONGEST_DEPLOYMENT and value.isprintable()
    if value is not None and not is_text:
        yield f"{name} must be None or a str of at most {LONGEST_DEPLOYMENT} printable characters, not {value!r}."


def _level_problems(name: str, value: object) -> Iterator[str]:
    known = logging.getLevelNamesMapping()
    if value is not None and (not isinstance(value, str) or value not in known):
        yield f"{name} must be None or the name of a logging level, such as 'INFO' or 'WARNING', not {value!r}."


def _rules_problems(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name} must be a dict of rules and thresholds, not {value!r}."
        return
    for code, threshold in value.items():
        by_queue = threshold if isinstance(threshold, dict) else {"*": threshold}
        for queue_name, number in by_queue.items():
            key_path = f"{name}[{code!r}][{queue_name!r}]" if by_queue is threshold else f"{name}[{code!r}]"
            is_number = isinstance(number, int | float) and not isinstance(number, bool) and number > 0
            if number is not None and not is_number:
                yield f"{key_path} must be a number above 0, or None for no threshold, not {number!r}."


def _searchable_problems(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name} must be a dict of tasks and their arguments, not {value!r}."
        return
    for task, arguments in value.items():
        if not (isinstance(task, str) and task):
            yield f"{name} must have names of tasks as keys, not {task!r}."
        is_list = isinstance(arguments, list | tuple) and bool(arguments)
        if not (is_list and all(isinstance(name, str) and name.isidentifier() for name in arguments)):
            yield f"{name}[{task!r}] must be a list of names of arguments, not {arguments!r}."
        elif len(set(arguments)) < len(arguments):
            yield f"{name}[{task!r}] names an argument twice: {arguments!r}."


PROBLEMS: dict[str, Callable[[str, object], Iterator[str]]] = {
    "retention": retention_problems,
    "links": link_template.problems,
    "queues": queue_problems,
    "rules": _rules_problems,
    "searchable": _searchable_problems,
    "deployment": _deployment_problems,
    "metrics_token": _token_problems,
    "capture_logs": _level_problems,
    **{setting.name: setting.metadata["problems"] for setting in fields(Settings) if "problems" in setting.metadata},
}
"""The functions that check the settings which need more than a check of their type. Each function takes the setting's
name and value, and yields one sentence for each mistake."""

TEXT_TYPES = {str: "a str", NAMES_TUPLE: "a tuple of names"}
"""What a setting of each type must be, in an error message about a setting without its own check function."""


def _is_text(value: object, text_type: type) -> bool:
    """Whether the value is a string that is not empty, or if `text_type` is a tuple, a list of names."""
    if text_type is str:
        return isinstance(value, str) and bool(value)
    return isinstance(value, list | tuple) and all(isinstance(name, str) and words(name) for name in value)


def _hint_for_unknown_key(key: str, known: list[str]) -> str:
    if app := APPS_OF_KEYS.get(key):
        return f" Add {app!r} to INSTALLED_APPS: that app reads it."
    if key in SUCCESSORS:
        return f" {SUCCESSORS[key]}"
    if key not in OPTIONS_OF_RUNWORKER:
        return did_you_mean(key, known)
    option = key.lower().replace("_", "-")
    return f" It is an option of runworker: --{option}, or SKIPQUEUE_{key} in its environment."


def _clear_cache(*, setting: str, **_: Any) -> None:
    if setting == "SKIPQUEUE":
        load.cache_clear()


setting_changed.connect(_clear_cache, dispatch_uid="django_skipqueue.conf")


_chosen_database: ContextVar[str | None] = ContextVar("skipqueue_database", default=None)


@contextmanager
def using_database(alias: str) -> Iterator[None]:
    """In this block, use the queue in the database with this alias, instead of the one in the setting `DATABASE`.

    This affects only the current thread or coroutine.
    """
    token = _chosen_database.set(alias)
    try:
        yield
    finally:
        _chosen_database.reset(token)


@functools.cache
def own_apps() -> set[str]:
    """The labels of this package's apps that are in the project's `INSTALLED_APPS`."""
    return {config.label for config in apps.get_app_configs() if config.name.partition(".")[0] == "django_skipqueue"}


def chosen_or_all(named: str | None = None) -> tuple[str, ...]:
    """The aliases of the databases to work on: `named`, or the one that `using_database` has chosen, or else all."""
    chosen_alias = named or _chosen_database.get()
    return load().served_databases if chosen_alias is None else (chosen_alias,)


class _Lazy:
    """Loads the settings when an attribute is first read, so that importing this module reads no settings."""

    def __getattr__(self, name: str) -> Any:
        if name == "database" and (chosen_alias := _chosen_database.get()) is not None:
            return chosen_alias
        return getattr(load(), name)


if typing.TYPE_CHECKING:
    settings: Settings
else:
    settings = _Lazy()
