"""System checks: `manage.py check` reports mistakes in the set-up. Each check has an id and a hint."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import ForeignKey

from . import conf
from .jobs.registry import describe_duplicate, registry
from .queue.store import Store
from .values.bounds import did_you_mean
from .values.part import installed_parts
from .worker.attempts.executor import import_middleware
from .worker.preflight import engine_problem, version_problem

SETTINGS_HINT = "The page Settings of the documentation (docs/reference/settings.md) lists every key with its type."


def register_all() -> None:
    """Register every check. Called when the app is ready."""
    for check in (
        check_settings,
        check_engine,
        check_middleware,
        check_task_names,
        check_runworker,
        check_relations,
        check_rules,
        check_searchable,
        *(check for part in installed_parts() for check in part.checks),
    ):
        register(check, "django_skipqueue")
    checks_of_parts = (check for part in installed_parts() for check in part.database_checks)
    for check in (check_server_version, check_search_indexes, *checks_of_parts):
        register(check, Tags.database)


def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: the setting SKIPQUEUE has an unknown key, or a value of the wrong type."""
    return [Error(problem, hint=SETTINGS_HINT, id="skipqueue.E001") for problem in conf.problems()]


def check_engine(**_: Any) -> list[CheckMessage]:
    """E002: a database that the queue uses is missing from DATABASES, or is not PostgreSQL."""
    problems = [engine_problem(alias) for alias in _queue_databases()]
    return [Error(problem.message, hint=problem.hint, id="skipqueue.E002") for problem in problems if problem]


def check_server_version(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """E003: a PostgreSQL server is too old. Sends a query, so it runs only with `check --database` and `migrate`."""
    problems = [version_problem(alias, version) for alias, version in _reachable_databases(databases)]
    return [Error(problem.message, hint=problem.hint, id="skipqueue.E003") for problem in problems if problem]


def check_middleware(**_: Any) -> list[CheckMessage]:
    """E004: a middleware cannot be imported, cannot be called, or does not return a context manager."""
    try:
        paths = conf.load().middleware
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    problems: list[CheckMessage] = []
    for path in paths:
        try:
            import_middleware(path)
        except ImproperlyConfigured as error:
            problems.append(
                Error(
                    str(error),
                    hint="The section Middleware of the documentation (docs/how-to/progress.md) shows one.",
                    id="skipqueue.E004",
                )
            )
    return problems


def check_task_names(**_: Any) -> list[CheckMessage]:
    """E005: two functions are registered as tasks under the same name."""
    return [
        Error(
            describe_duplicate(*tasks),
            hint="Jobs are stored with the name alone, so a worker could not tell which function to run.",
            id="skipqueue.E005",
        )
        for tasks in registry.duplicates.values()
    ]


def check_runworker(**_: Any) -> list[CheckMessage]:
    """W001: the project has also installed Channels, which has a `runworker` command as well."""
    if not apps.is_installed("channels"):
        return []
    order = [config.name for config in apps.get_app_configs()]
    ours_is_first = order.index("django_skipqueue") < order.index("channels")
    winner = "django_skipqueue" if ours_is_first else "channels"
    return [
        Warning(
            "Both django_skipqueue and channels have a command `runworker`; "
            f"`manage.py runworker` is the one of {winner}.",
            hint="The app that stands first in INSTALLED_APPS wins. The one of django_skipqueue is also called "
            "`manage.py skipqueue worker`. For the one of channels, put a command of another name into your project "
            "that subclasses channels.management.commands.runworker.Command. Silence this check once the order is "
            "what you want.",
            id="skipqueue.W001",
        )
    ]


def check_relations(**_: Any) -> list[CheckMessage]:
    """W002: a foreign key of the project prevents jobs from being pruned."""
    return [
        Warning(
            f"{field} keeps the jobs that it refers to from being pruned.",
            hint="Jobs past their retention are deleted in SQL: on_delete, which is Django's, does nothing, and the "
            "database refuses to delete them. Say on_delete=DO_NOTHING, db_constraint=False, or keep the job's id in "
            "a BigIntegerField; from Django 6.1 on, DB_SET_NULL and DB_CASCADE do what they say.",
            id="skipqueue.W002",
        )
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.local_fields
        if isinstance(field, ForeignKey)
        and field.remote_field.model._meta.label == "django_skipqueue.Job"
        and getattr(field, "db_constraint", True)
        and not hasattr(field.remote_field.on_delete, "on_delete_sql")  # from Django 6.1 on, the database can do it
    ]


def check_rules(**_: Any) -> list[CheckMessage]:
    """E012: the setting `RULES` names a rule that does not exist, or gives a rule a threshold that it cannot have."""
    try:
        rules_setting = conf.load().rules
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    if not rules_setting:
        return []  # so that a worker without `RULES` does not import the console
    from .console.rules.examination import all_rules

    rules = {rule.code: rule for rule in all_rules()}
    problems = []
    for code, value in rules_setting.items():
        name = f"SKIPQUEUE['RULES'][{code!r}]"
        if code not in rules:
            problems.append(f"SKIPQUEUE['RULES'] has no rule {code!r}.{did_you_mean(code, list(rules))}")
        elif value is not None and (threshold := rules[code].threshold) is None:
            problems.append(f"{name} must be None, which turns the rule off: the rule has no threshold.")
        elif isinstance(value, dict) and threshold and not threshold.has_queues:
            problems.append(f"{name} must be a number or None: no queue has a threshold of its own for this rule.")
    hint = "The page “Doctor and alerts” of the documentation (docs/how-to/doctor.md) lists every rule."
    return [Error(problem, hint=hint, id="skipqueue.E012") for problem in problems]


def check_searchable(**_: Any) -> list[CheckMessage]:
    """E013: the setting SEARCHABLE names a task or an argument that cannot be indexed."""
    try:
        if not conf.load().searchable:
            return []  # so that a worker without `SEARCHABLE` does not import the console
        from .console import search_indexes

        problems = list(search_indexes.problems())
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    hint = "The section “An index on an argument” of the documentation (docs/how-to/admin.md) shows an example."
    return [Error(problem, hint=hint, id="skipqueue.E013") for problem in problems]


def check_search_indexes(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """W006: an index for SEARCHABLE is missing or invalid, so no search uses it. Sends a query to each database."""
    try:
        if not conf.load().searchable:
            return []
    except ImproperlyConfigured:
        return []
    from .console import search_indexes

    wanted_indexes = search_indexes.wanted()
    warnings: list[CheckMessage] = []
    for alias, _version in _reachable_databases(databases) if wanted_indexes else ():
        valid_names = {index.name for index in search_indexes.existing(Store(alias)) if index.is_valid}
        warnings += [
            Warning(
                f"The database {alias!r} has no valid index for {index}, which SKIPQUEUE['SEARCHABLE'] names.",
                hint="Run `manage.py skipqueue index`, which builds it while jobs run.",
                id="skipqueue.W006",
            )
            for index in wanted_indexes
            if index.name not in valid_names
        ]
    return warnings


def _queue_databases() -> tuple[str, ...]:
    """The aliases of the databases with queues. Empty if the settings are not valid, which the check E001 reports."""
    try:
        return conf.load().served_databases
    except ImproperlyConfigured:
        return ()


def _reachable_databases(databases: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    """Yield the alias and the server version of each of these databases that has a queue and can be reached."""
    for alias in _queue_databases():
        if alias in (databases or ()) and alias in connections and connections[alias].vendor == "postgresql":
            try:
                with connections[alias].temporary_connection():
                    version: int = connections[alias].pg_version  # type: ignore[attr-defined]
            except DatabaseError:
                continue  # Django itself reports that it cannot connect
            yield alias, version
