"""Each system check reports one mistake of a project, with a hint, and reports nothing without the mistake."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.apps import apps
from django.core.checks import ERROR, WARNING, CheckMessage, run_checks
from django.core.management import call_command
from django.db import OperationalError, connection, models
from django.db.backends.postgresql.base import DatabaseWrapper
from django.test import override_settings
from django.test.utils import isolate_apps

from django_skipqueue import checks, job
from django_skipqueue.console import search_indexes
from django_skipqueue.contrib.celery import apps as celery_checks
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

pytestmark = pytest.mark.django_db


def send_update(order: int) -> None:
    """A function that a test registers as a task."""


def run_check(check: Callable[..., list[CheckMessage]], **options: Any) -> list[CheckMessage]:
    """Run a check. Each message must have a hint."""
    messages = check(app_configs=None, **options)
    for message in messages:
        assert message.hint
        assert message.is_serious() == (message.level >= ERROR)
    return messages


def ids(messages: list[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_the_checks_find_no_mistake_in_the_test_project() -> None:
    messages = run_checks(databases=["default", "other"], include_deployment_checks=False)
    assert [message for message in messages if str(message.id).startswith("skipqueue.")] == []


@pytest.mark.parametrize(
    ("on_delete", "has_constraint", "found_ids"),
    [
        (models.SET_NULL, True, ["skipqueue.W002"]),
        (models.CASCADE, True, ["skipqueue.W002"]),
        (models.DO_NOTHING, False, []),
    ],
)
def test_w002_names_a_foreign_key_that_keeps_jobs_from_being_pruned(
    on_delete: Any, has_constraint: bool, found_ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolate_apps("tests.app"):

        class Report(models.Model):  # noqa: DJ008 (the test does not print a report)
            job = models.ForeignKey(Job, on_delete=on_delete, null=True, db_constraint=has_constraint, related_name="+")

            class Meta:
                app_label = "app"

    monkeypatch.setattr(apps, "get_models", lambda **_: [Report])
    messages = run_check(checks.check_relations)
    assert ids(messages) == found_ids
    for message in messages:
        assert message.msg == "app.Report.job keeps the jobs that it refers to from being pruned."


def test_the_checks_run_with_manage_py_check(settings: Any) -> None:
    from django.core.management.base import SystemCheckError

    settings.SKIPQUEUE = {"LEES": 60}
    with pytest.raises(SystemCheckError, match=r"skipqueue\.E001"):
        call_command("check")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"WORKER_TIMOUT": 60}, ["no key 'WORKER_TIMOUT'. Did you mean 'WORKER_TIMEOUT'?"]),
        ({"worker_timeout": 60}, ["no key 'worker_timeout'. Did you mean 'WORKER_TIMEOUT'?"]),
        (
            {"WORKER_TIMEOUT": "60"},
            ["SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not '60'"],
        ),
        ({"WORKER_TIMEOUT": True, "MAX_ATTEMPTS": 0}, ["'WORKER_TIMEOUT'", "'MAX_ATTEMPTS'"]),
        ({"RETENTION": {"finished": 1}}, ["no status 'finished'"]),
        ({"RETENTION": {"failed": -1}}, ["['failed'] must be a timedelta"]),
        ([], ["must be a dict, not list"]),
        ({"WORKER_TIMEOUT": 90, "RETENTION": {"failed": None}}, []),
    ],
)
def test_e001_names_each_wrong_setting(setting: Any, expected: list[str]) -> None:
    with override_settings(SKIPQUEUE=setting):
        messages = run_check(checks.check_settings)
    assert ids(messages) == ["skipqueue.E001"] * len(expected)
    for message, text in zip(messages, expected, strict=True):
        assert text in message.msg


def test_e002_names_a_database_that_is_no_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(checks.check_engine) == []
    monkeypatch.setattr(DatabaseWrapper, "vendor", "sqlite")
    monkeypatch.setattr(DatabaseWrapper, "display_name", "SQLite")
    (message,) = run_check(checks.check_engine)
    assert (message.id, message.level) == ("skipqueue.E002", ERROR)
    assert "'default' is SQLite" in message.msg
    assert str(message.hint).startswith("Set DATABASES['default']['ENGINE'] to 'django.db.backends.postgresql', or ")


def test_e002_names_a_database_that_does_not_exist() -> None:
    with override_settings(SKIPQUEUE={"DATABASE": "nosuch"}):
        (message,) = run_check(checks.check_engine)
        assert message.id == "skipqueue.E002"
        assert "'nosuch'" in message.msg
        assert "default, other" in (message.hint or "")
    with override_settings(SKIPQUEUE={"DATABASE": "other"}):
        assert run_check(checks.check_engine) == []


@pytest.mark.parametrize("setting", [{"DATABASE": 5}, [], {"LEES": 1}])
def test_the_checks_return_nothing_on_settings_that_e001_reports(setting: Any) -> None:
    with override_settings(SKIPQUEUE=setting):
        for check in (
            checks.check_engine,
            checks.check_middleware,
            checks.check_server_version,
            checks.check_searchable,
            checks.check_search_indexes,
        ):
            assert check() == []


@pytest.mark.parametrize(("version", "expected"), [(140_020, ["skipqueue.E003"]), (150_000, []), (180_004, [])])
def test_e003_names_a_server_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, version: int, expected: list[str]
) -> None:
    monkeypatch.setattr(DatabaseWrapper, "pg_version", property(lambda _: version))
    messages = run_check(checks.check_server_version, databases=["default"])
    assert ids(messages) == expected
    assert all("PostgreSQL 15 or newer; the database 'default' is PostgreSQL 14" in message.msg for message in messages)


def test_e003_examines_only_the_databases_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabaseWrapper, "pg_version", property(lambda _: 90_000))
    assert run_check(checks.check_server_version) == []
    assert run_check(checks.check_server_version, databases=["other"]) == []


def test_e003_says_nothing_about_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_operational_error(self: Any) -> int:
        raise OperationalError("no server")

    monkeypatch.setattr(DatabaseWrapper, "pg_version", property(raise_operational_error))
    assert run_check(checks.check_server_version, databases=["default"]) == []


@pytest.mark.parametrize(
    ("middleware", "expected"),
    [
        (["contextlib.nullcontext"], []),
        (["contextlib.nullcontext", "shop.middleware.timed"], ["skipqueue.E004"]),
        (["tests.worker.attempts.test_middleware.undecorated"], ["skipqueue.E004"]),
        (["tests.worker.attempts.test_middleware.undecorated_async"], ["skipqueue.E004"]),
        (["os.sep", "contextlib.nothing"], ["skipqueue.E004", "skipqueue.E004"]),
        ("contextlib.nullcontext", []),  # E001 reports that this is not a tuple
    ],
)
def test_e004_names_an_object_that_is_no_middleware(middleware: Any, expected: list[str]) -> None:
    with override_settings(SKIPQUEUE={"MIDDLEWARE": middleware}):
        assert ids(run_check(checks.check_middleware)) == expected


@pytest.mark.parametrize(
    "setting", [{"WORKER_TIMEOUT": 20}, {"WORKER_TIMEOUT": 1}, {"HEARTBEAT_INTERVAL": 25}, {"HEARTBEAT_INTERVAL": 600}]
)
def test_a_short_worker_timeout_passes_the_checks(setting: Any) -> None:
    with override_settings(SKIPQUEUE=setting):
        assert [message for message in run_checks() if str(message.id).startswith("skipqueue.")] == []


def test_e005_names_both_functions_of_one_name(registry: Registry) -> None:
    def first() -> None: ...
    def second() -> None: ...

    for function in (first, second):
        function.__qualname__ = function.__name__
        assert run_check(checks.check_task_names) == []
        job(name="same")(function)
    (message,) = run_check(checks.check_task_names)
    assert (message.id, message.level) == ("skipqueue.E005", ERROR)
    assert "'same'" in message.msg
    assert "first" in message.msg
    assert "second" in message.msg


ADD = "tests.app.jobs.add"


@pytest.mark.parametrize(
    ("searchable", "expected"),
    [
        ({ADD: ["a", "b"]}, []),
        ({"shop.nosuch": ["a"]}, ["'shop.nosuch']: no task is registered under this name."]),
        ({ADD: ["A", "b"]}, [f"{ADD!r}]: the task has no argument 'A'."]),
        ({ADD: "a"}, []),  # E001 reports that this is not a list
    ],
)
def test_e013_names_an_argument_that_no_index_can_find(searchable: Any, expected: list[str]) -> None:
    with override_settings(SKIPQUEUE={"SEARCHABLE": searchable}):
        messages = run_check(checks.check_searchable)
    assert [message.id for message in messages] == ["skipqueue.E013"] * len(expected)
    for message, text in zip(messages, expected, strict=True):
        assert text in message.msg


def test_w006_names_an_index_that_is_not_built() -> None:
    with override_settings(SKIPQUEUE={"SEARCHABLE": {ADD: ["a"], "shop.nosuch": ["a"]}}):
        assert (
            run_check(checks.check_search_indexes) == run_check(checks.check_search_indexes, databases=["other"]) == []
        )
        (message,) = run_check(checks.check_search_indexes, databases=["default"])
        assert (message.id, message.level) == ("skipqueue.W006", WARNING)
        assert message.msg.startswith(f"The database 'default' has no valid index for {ADD} (a)")
        (index,) = search_indexes.wanted()
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE INDEX {index.name} ON skipqueue_job (id)")
        assert run_check(checks.check_search_indexes, databases=["default"]) == []


@pytest.mark.parametrize("first_app", ["django_skipqueue", "channels"])
def test_w001_names_the_app_that_provides_the_runworker_command(
    monkeypatch: pytest.MonkeyPatch, settings: Any, first_app: str
) -> None:
    assert run_check(checks.check_runworker) == []
    channels = types.ModuleType("channels")
    channels.__path__ = ["/nonexistent/channels"]
    monkeypatch.setitem(sys.modules, "channels", channels)
    other_apps = [name for name in settings.INSTALLED_APPS if name != "django_skipqueue"]
    second_app = {"django_skipqueue": "channels", "channels": "django_skipqueue"}[first_app]
    with override_settings(INSTALLED_APPS=[first_app, second_app, *other_apps]):
        (message,) = run_check(checks.check_runworker)
    assert not apps.is_installed("channels")
    assert (message.id, message.level) == ("skipqueue.W001", WARNING)
    assert f"is the one of {first_app}" in message.msg
    assert "`manage.py skipqueue worker`" in (message.hint or "")


def queue_carried_by_celery(app: str, **queues: str) -> Any:
    """Have Celery run the jobs of these queues, by default of the queue `pdf`."""
    return override_settings(SKIPQUEUE={"CARRIERS": {"celery": {"APP": app, "QUEUES": queues or {"pdf": "pdf"}}}})


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("tests.app.celery_app.app", ""),
        (
            "tests.app.celery_app.nothing",
            "The Celery app 'tests.app.celery_app.nothing' of the carrier 'celery'",
        ),
        ("shop.no_celery.app", "The Celery app 'shop.no_celery.app' of the carrier 'celery' cannot be imported"),
        (
            "tests.app.celery_app.not_an_app",
            "'tests.app.celery_app.not_an_app' of the carrier 'celery' is no",
        ),
    ],
)
def test_e011_names_a_carrier_without_an_app(app: str, expected: str) -> None:
    with queue_carried_by_celery(app):
        messages = run_check(celery_checks.check_carriers)
    assert ids(messages) == (["skipqueue.E011"] if expected else [])
    assert all(message.msg.startswith(expected) for message in messages)


@pytest.mark.parametrize("scheme", ["redis", "sqs", "memory", "nothing"])
def test_e011_names_a_broker_that_is_not_rabbitmq(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check refuses the broker even if kombu lacks the library for it."""
    app = Celery("tests", broker=f"{scheme}://anna:secret@127.0.0.1:1//", set_as_current=False)
    monkeypatch.setattr("tests.app.celery_app.app", app)
    with queue_carried_by_celery("tests.app.celery_app.app"):
        (message,) = run_check(celery_checks.check_carriers)
    assert message.id == "skipqueue.E011"
    assert "A carrier needs RabbitMQ, with a broker_url that begins with amqp:// or amqps://." in message.msg
    assert "secret" not in message.msg


def test_e011_names_a_broker_url_that_nobody_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("tests", broker="amqp://anna:se/cret@127.0.0.1:1//", set_as_current=False)
    monkeypatch.setattr("tests.app.celery_app.app", app)
    with queue_carried_by_celery("tests.app.celery_app.app"):
        (message,) = run_check(celery_checks.check_carriers)
    assert "broker_url" in message.msg
    assert "cret" not in message.msg


def test_e011_says_why_an_app_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message replaces a traceback, which would end every command."""
    (tmp_path / "broken_celery.py").write_text("app = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with queue_carried_by_celery("broken_celery.app"):
        (message,) = run_check(celery_checks.check_carriers)
    assert message.msg.endswith("cannot be imported: ZeroDivisionError('division by zero')")


def test_e011_names_the_extra_to_install_if_celery_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("django_skipqueue.contrib.celery.")]:
        if module.endswith((".celery_carrier", ".rabbitmq")):
            monkeypatch.delitem(sys.modules, module)
    for package in ("amqp", "celery", "kombu"):
        monkeypatch.setitem(sys.modules, package, None)  # an import now fails as if the package was not installed
    with queue_carried_by_celery("tests.app.celery_app.app"):
        (message,) = run_check(celery_checks.check_carriers)
    assert message.id == "skipqueue.E011"
    assert 'pip install "django-skipqueue[celery]"' in message.msg


def test_e011_and_w005_report_nothing_about_a_wrong_setting_that_e001_reports() -> None:
    with override_settings(SKIPQUEUE={"CARRIERS": {"celery": {"APP": "celery"}}}):
        assert run_check(celery_checks.check_carriers) == run_check(celery_checks.check_carried_tasks) == []
        assert ids(run_check(checks.check_settings)) == ["skipqueue.E001"] * 2


@pytest.mark.parametrize(
    ("options", "found_ids"),
    [
        ({"queue_name": "pdf"}, ["skipqueue.W005"]),
        ({"queue_name": "pdf", "timeout": 1_800}, ["skipqueue.W005"]),
        ({"queue_name": "pdf", "timeout": 1_799}, []),
        ({"queue_name": "mail"}, []),
    ],
)
def test_w005_names_a_carried_task_that_may_take_longer_than_rabbitmq_waits(
    registry: Registry, options: dict[str, Any], found_ids: list[str]
) -> None:
    decorate: Callable[..., Any] = job(name="print", **options)
    decorate(send_update)
    assert run_check(celery_checks.check_carried_tasks) == []
    with queue_carried_by_celery("tests.app.celery_app.app"):
        messages = run_check(celery_checks.check_carried_tasks)
    assert ids(messages) == found_ids
    assert all("'print'" in message.msg for message in messages)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"late-workers": None}, "SKIPQUEUE['RULES'] has no rule 'late-workers'. Did you mean 'late-worker'?"),
        ({"late-worker": 5}, "SKIPQUEUE['RULES']['late-worker'] must be None, which turns the rule off: the rule has"),
        ({"no-free-slot": {"mail": 60}}, "SKIPQUEUE['RULES']['no-free-slot'] must be a number or None: no queue has a"),
        ({"late-worker": None, "no-free-slot": 60, "paused-queue": {"*": 60, "mail": None}}, ""),
        ({}, ""),
        ({"late-worker": "x"}, ""),
    ],
)
def test_e012_names_a_threshold_of_no_rule(rules: dict[str, Any], expected: str) -> None:
    with override_settings(SKIPQUEUE={"RULES": rules}):
        messages = run_check(checks.check_rules)
    assert ids(messages) == ["skipqueue.E012"] * bool(expected)
    assert all(message.msg.startswith(expected) for message in messages)


def test_the_check_of_the_server_leaves_the_connection_open() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    run_check(checks.check_server_version, databases=["default"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
