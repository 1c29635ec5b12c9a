"""`manage.py importtasks`, with a table as django-tasks-db has it."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, models
from django.test.utils import isolate_apps

from django_skipqueue.integrations.django_tasks.definition import registered
from django_skipqueue.integrations.django_tasks.framework import task_backends
from django_skipqueue.models import Job

from .app import tasks
from .running import run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])

COMMAND = "django_skipqueue.integrations.django_tasks.import_tasks"
ADD = "tests.backend.app.tasks.add"
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The old table, in both databases."""
    with isolate_apps("django_skipqueue"):

        class DBTaskResult(models.Model):  # noqa: DJ008
            status = models.TextField(default="READY")
            enqueued_at = models.DateTimeField(auto_now_add=True)
            args_kwargs = models.JSONField()
            priority = models.IntegerField(default=0)
            task_path = models.TextField(default=ADD)
            queue_name = models.TextField(default="default")
            backend_name = models.TextField(default="default")
            run_after = models.DateTimeField(default=NEVER, null=True)

            class Meta:
                app_label = "django_skipqueue"

    for alias in ("default", "other"):
        with connections[alias].schema_editor() as editor:
            editor.create_model(DBTaskResult)
    monkeypatch.setattr(f"{COMMAND}.source_model", lambda: DBTaskResult)
    registered(tasks.add)
    yield DBTaskResult
    for alias in ("default", "other"):
        with connections[alias].schema_editor() as editor:
            editor.delete_model(DBTaskResult)


def put(old: Any, *args: Any, using: str = "default", kwargs: dict[str, Any] | None = None, **fields: Any) -> Any:
    return old.objects.using(using).create(args_kwargs={"args": args, "kwargs": kwargs or {}}, **fields)


def run(**options: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("importtasks", stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue()


def test_waiting_rows_become_jobs_in_their_order_and_leave_the_old_table(old: Any) -> None:
    put(old, 1, kwargs={"b": 2})
    put(old, 2, priority=9, queue_name="high")
    put(old, 3, run_after=LATER)
    put(old, 4, run_after=None)
    out, err = run()
    assert (out, err) == (f"Moved 4 tasks (4 {ADD}).\n", "")
    assert not old.objects.exists()
    rows = {row.args[0]: row for row in Job.objects.all()}
    assert rows[1].kwargs == {"b": 2}
    assert (rows[2].priority, rows[2].queue_name, rows[3].run_after) == (9, "high", LATER)
    assert [rows[number].status for number in (1, 2, 3, 4)] == ["queued", "queued", "scheduled", "queued"]
    assert rows[1].pk < rows[4].pk
    run_next()
    assert task_backends["default"].get_result(str(rows[1].pk)).return_value == 3


def test_what_is_not_waiting_stays(old: Any) -> None:
    for status in ("RUNNING", "SUCCESSFUL", "FAILED"):
        put(old, 1, status=status)
    assert run()[0] == "Moved 0 tasks.\n"
    assert old.objects.count() == 3
    assert not Job.objects.exists()


def test_rows_of_tasks_that_nobody_registered_stay_and_are_named(old: Any) -> None:
    put(old, 1)
    put(old, task_path="os.system")
    out, err = run()
    assert out.startswith("Moved 1 tasks")
    assert "1 os.system" in err
    assert [row.task_path for row in old.objects.all()] == ["os.system"]


def test_a_dry_run_moves_nothing(old: Any) -> None:
    put(old, 1)
    assert run(dry_run=True)[0] == f"Would move 1 tasks (1 {ADD}).\n"
    assert old.objects.count() == 1
    assert not Job.objects.exists()


def test_all_batches_are_moved(old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{COMMAND}.IMPORT_BATCH", 2)
    for number in range(5):
        put(old, number)
    assert run()[0].startswith("Moved 5 tasks")
    assert [row.args for row in Job.objects.order_by("id")] == [[number] for number in range(5)]


def test_from_another_database_and_with_the_options_of_the_alias(old: Any) -> None:
    put(old, 1, using="other", queue_name="anything")
    run(source="other", backend="mail")
    row = Job.objects.get()
    assert (row.queue_name, row.max_attempts, row.timeout, row.metadata) == ("anything", 3, 45.0, {"backend": "mail"})
    assert not old.objects.using("other").exists()


def test_the_placement_decides_without_a_database_in_the_options(old: Any, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}
    for number in range(5):
        put(old, number)
    run()
    found = [row.args[0] for alias in ("default", "other") for row in Job.objects.using(alias)]
    assert sorted(found) == list(range(5))
    assert all(Job.objects.using(alias).exists() for alias in ("default", "other"))
    assert not old.objects.exists()


def test_a_batch_that_fails_leaves_everything_as_it_was(old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(old, 1)
    monkeypatch.setattr(old.objects.none().__class__, "delete", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    assert old.objects.count() == 1
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nowhere"}, "there is no 'nowhere' in TASKS"),
        ({"backend": "elsewhere"}, r"First set TASKS\['elsewhere'\]\['BACKEND'\]"),
        ({"source": "nowhere"}, "there is no database 'nowhere'"),
    ],
)
def test_a_wrong_option(old: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(**options)


def test_without_the_old_app() -> None:
    with pytest.raises(CommandError, match="Keep 'django_tasks_db' in INSTALLED_APPS"):
        run()
