"""`manage.py importtasks`, which moves waiting tasks from the table of django-tasks-db into the queue."""

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
ADD = "tests.integrations.django_tasks.app.tasks.add"
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def old_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a table like that of django-tasks-db in both databases, and yield its model."""
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


def add_old_task(
    old_model: Any, *args: Any, using: str = "default", kwargs: dict[str, Any] | None = None, **fields: Any
) -> Any:
    return old_model.objects.using(using).create(args_kwargs={"args": args, "kwargs": kwargs or {}}, **fields)


def import_tasks(**options: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("importtasks", stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue()


def test_waiting_tasks_become_jobs_in_their_order_and_leave_the_old_table(old_model: Any) -> None:
    add_old_task(old_model, 1, kwargs={"b": 2})
    add_old_task(old_model, 2, priority=9, queue_name="high")
    add_old_task(old_model, 3, run_after=LATER)
    add_old_task(old_model, 4, run_after=None)
    out, err = import_tasks()
    assert (out, err) == (f"Moved 4 tasks (4 {ADD}).\n", "")
    assert not old_model.objects.exists()
    job_by_number = {job.args[0]: job for job in Job.objects.all()}
    assert job_by_number[1].kwargs == {"b": 2}
    assert (job_by_number[2].priority, job_by_number[2].queue_name, job_by_number[3].run_after) == (9, "high", LATER)
    assert [job_by_number[number].status for number in (1, 2, 3, 4)] == ["queued", "queued", "scheduled", "queued"]
    assert job_by_number[1].pk < job_by_number[4].pk
    run_next()
    assert task_backends["default"].get_result(str(job_by_number[1].pk)).return_value == 3


def test_tasks_that_are_not_waiting_stay_in_the_old_table(old_model: Any) -> None:
    for status in ("RUNNING", "SUCCESSFUL", "FAILED"):
        add_old_task(old_model, 1, status=status)
    assert import_tasks()[0] == "Moved 0 tasks.\n"
    assert old_model.objects.count() == 3
    assert not Job.objects.exists()


def test_unknown_tasks_stay_in_the_old_table_and_are_named(old_model: Any) -> None:
    add_old_task(old_model, 1)
    add_old_task(old_model, task_path="os.system")
    out, err = import_tasks()
    assert out.startswith("Moved 1 tasks")
    assert "1 os.system" in err
    assert [row.task_path for row in old_model.objects.all()] == ["os.system"]


def test_a_dry_run_moves_nothing(old_model: Any) -> None:
    add_old_task(old_model, 1)
    assert import_tasks(dry_run=True)[0] == f"Would move 1 tasks (1 {ADD}).\n"
    assert old_model.objects.count() == 1
    assert not Job.objects.exists()


def test_importtasks_moves_several_batches(old_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{COMMAND}.IMPORT_BATCH", 2)
    for number in range(5):
        add_old_task(old_model, number)
    assert import_tasks()[0].startswith("Moved 5 tasks")
    assert [row.args for row in Job.objects.order_by("id")] == [[number] for number in range(5)]


def test_tasks_are_imported_from_another_database_with_the_options_of_an_alias(old_model: Any) -> None:
    add_old_task(old_model, 1, using="other", queue_name="anything")
    import_tasks(source="other", backend="mail")
    job = Job.objects.get()
    assert (job.queue_name, job.max_attempts, job.timeout, job.metadata) == ("anything", 3, 45.0, {"backend": "mail"})
    assert not old_model.objects.using("other").exists()


def test_the_placement_chooses_the_database_of_imported_tasks(old_model: Any, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}
    for number in range(5):
        add_old_task(old_model, number)
    import_tasks()
    imported_numbers = [row.args[0] for alias in ("default", "other") for row in Job.objects.using(alias)]
    assert sorted(imported_numbers) == list(range(5))
    assert all(Job.objects.using(alias).exists() for alias in ("default", "other"))
    assert not old_model.objects.exists()


def test_an_import_that_fails_changes_nothing(old_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_old_task(old_model, 1)
    monkeypatch.setattr(old_model.objects.none().__class__, "delete", lambda self: 1 / 0)  # raises an error
    with pytest.raises(ZeroDivisionError):
        import_tasks()
    assert old_model.objects.count() == 1
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nowhere"}, "there is no 'nowhere' in TASKS"),
        ({"backend": "elsewhere"}, r"First set TASKS\['elsewhere'\]\['BACKEND'\]"),
        ({"source": "nowhere"}, "there is no database 'nowhere'"),
    ],
)
def test_a_wrong_option_of_importtasks_is_an_error(old_model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        import_tasks(**options)


def test_importtasks_without_the_old_app_says_what_to_do() -> None:
    with pytest.raises(CommandError, match="Keep 'django_tasks_db' in INSTALLED_APPS"):
        import_tasks()
