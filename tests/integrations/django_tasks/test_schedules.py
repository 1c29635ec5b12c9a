"""`@periodic` above Django's `@task`."""

from datetime import timedelta

import pytest
from django.test import override_settings

from django_skipqueue import periodic
from django_skipqueue.exceptions import InvalidTask
from django_skipqueue.integrations.django_tasks.definition import registered
from django_skipqueue.integrations.django_tasks.mapping import result_of, variant
from django_skipqueue.models import Job
from django_skipqueue.parts.schedules.entry import all_entries, entries

from ...parts.schedules.rows import fire_all, make_schedule, without_entries
from .app import tasks
from .running import run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def test_a_schedule_enqueues_a_django_task_as_enqueue_does() -> None:
    with without_entries():
        assert periodic(timedelta(minutes=5), a=1, b=2)(tasks.add) is tasks.add
        (entry,), problems = all_entries()
        assert not problems
    assert (entry.task, entry.call) == (tasks.add.module_path, ([], {"a": 1, "b": 2}))
    make_schedule("s", due=1, task=entry.task, kwargs=dict(entry.kwargs))
    assert fire_all() == 1
    tasks.add.enqueue(1, b=2)
    fired_job, enqueued_job = Job.objects.order_by("id")
    assert fired_job.metadata.pop("schedule")["name"] == "s"
    for name in ("task", "queue_name", "priority", "max_attempts", "timeout", "retention", "metadata"):
        assert getattr(fired_job, name) == getattr(enqueued_job, name), name
    run_next()
    fired_job.refresh_from_db()
    assert result_of(fired_job, tasks.add).return_value == 3


def test_a_job_of_a_schedule_has_the_options_of_the_alias_of_its_task() -> None:
    task_for_mail = variant(tasks.add, backend="mail", queue_name="mail")
    registered(task_for_mail).definition = task_for_mail  # as if the task were defined for the alias "mail"
    try:
        make_schedule("s", due=1, task=tasks.add.module_path, args=[1])
        fire_all()
    finally:
        registered(tasks.add).definition = tasks.add
    fired_job = Job.objects.get()
    assert (fired_job.queue_name, fired_job.max_attempts, fired_job.timeout) == ("mail", 3, 45.0)
    assert fired_job.metadata["backend"] == "mail"


def test_wrong_arguments_of_a_schedule_are_reported() -> None:
    with without_entries():
        periodic(timedelta(minutes=5), wrong=1)(tasks.add)
        found_entries, ((name, problem),) = all_entries()
    assert found_entries == []
    assert name == tasks.add.module_path
    assert "'wrong'" in problem


def test_a_computed_unique_key_of_a_scheduled_task_is_reported() -> None:
    with without_entries():
        periodic(timedelta(minutes=5), iban="DE1")(tasks.keyed)
        found_entries, ((_, problem),) = all_entries()
    assert found_entries == []
    assert "a function as unique_key" in problem


def test_the_setting_periodic_can_name_a_django_task() -> None:
    periodic_setting = {"s": {"task": tasks.add.module_path, "every": timedelta(minutes=5), "args": [1]}}
    with without_entries(), override_settings(SKIPQUEUE={"PERIODIC": periodic_setting}):
        (entry,), problems = all_entries()
    assert (entry.task, problems) == (tasks.add.module_path, [])


def test_periodic_refuses_a_function_that_is_not_a_task() -> None:
    with pytest.raises(InvalidTask, match="must be put above @job or @task"):
        periodic(timedelta(minutes=5))(tasks.add.func)
    assert all(entry.task != "add" for entry, _ in entries.values())
